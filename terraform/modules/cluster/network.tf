# Who reaches which port, the load balancer, and the name.

resource "aws_security_group" "this" {
  for_each = local.roles

  name        = each.value.group
  description = "Fonn: ${each.key}"
  vpc_id      = var.vpc_id
  tags        = merge(module.naming.tags, { Name = each.value.group })
}

locals {
  # Members among each other, and routers to nodes.
  internal = {
    "node-to-node-cluster"   = { from = "node", to = "node", port = local.ports.cluster }
    "node-to-node-client"    = { from = "node", to = "node", port = local.ports.client }
    "node-to-node-admin"     = { from = "node", to = "node", port = local.ports.node_admin }
    "router-to-node-cluster" = { from = "router", to = "node", port = local.ports.cluster }
    "router-to-node-client"  = { from = "router", to = "node", port = local.ports.client }
    "router-to-node-admin"   = { from = "router", to = "node", port = local.ports.node_admin }
  }
  # Clients and operators come through the load balancer, which keeps their addresses.
  external = merge(
    { for cidr in var.client_cidrs : "client-${cidr}" => { to = "router", port = local.ports.client, cidr = cidr } },
    { for cidr in var.admin_cidrs : "admin-${cidr}" => { to = "router", port = local.ports.router_admin, cidr = cidr } },
    { for cidr in var.admin_cidrs : "node-admin-${cidr}" => { to = "node", port = local.ports.node_admin, cidr = cidr } },
    # Health checks of the load balancer come from inside the network.
    { "health" = { to = "router", port = local.ports.router_admin, cidr = data.aws_vpc.this.cidr_block } },
  )
}

resource "aws_vpc_security_group_ingress_rule" "internal" {
  for_each = local.internal

  security_group_id            = aws_security_group.this[each.value.to].id
  referenced_security_group_id = aws_security_group.this[each.value.from].id
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  tags                         = module.naming.tags
}

resource "aws_vpc_security_group_ingress_rule" "external" {
  for_each = local.external

  security_group_id = aws_security_group.this[each.value.to].id
  cidr_ipv4         = each.value.cidr
  description       = each.key
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  tags              = module.naming.tags
}

# The bucket, AWS' interfaces and the distribution's packages are HTTPS.
resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = local.roles

  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv4         = "0.0.0.0/0"
  description       = "HTTPS"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = module.naming.tags
}

resource "aws_vpc_security_group_egress_rule" "internal" {
  for_each = local.internal

  security_group_id            = aws_security_group.this[each.value.from].id
  referenced_security_group_id = aws_security_group.this[each.value.to].id
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  tags                         = module.naming.tags
}

resource "aws_lb" "this" {
  name               = module.naming.routers
  internal           = true
  load_balancer_type = "network"
  subnets            = var.subnet_ids
  # Builds near one router are not sent to another zone and back unless theirs is gone.
  enable_cross_zone_load_balancing = false
  dns_record_client_routing_policy = "availability_zone_affinity"
  enable_deletion_protection       = var.deletion_protection
  tags                             = module.naming.tags
}

locals {
  listeners = { cache = local.ports.client, admin = local.ports.router_admin }
}

resource "aws_lb_target_group" "this" {
  for_each = local.listeners

  name               = "${var.name}-${each.key}"
  vpc_id             = var.vpc_id
  protocol           = "TCP"
  port               = each.value
  preserve_client_ip = true
  # A router that is going away answers what it has begun, within ten seconds.
  deregistration_delay   = 20
  connection_termination = true
  tags                   = module.naming.tags

  health_check {
    protocol            = var.secrets.tls == null ? "HTTP" : "HTTPS"
    port                = local.ports.router_admin
    path                = "/readyz"
    interval            = 5
    timeout             = 4
    healthy_threshold   = 2
    unhealthy_threshold = 2
    matcher             = "200"
  }
}

# TLS, if any, is between client and router: the load balancer passes it on.
resource "aws_lb_listener" "this" {
  for_each = local.listeners

  load_balancer_arn = aws_lb.this.arn
  protocol          = "TCP"
  port              = each.value
  tags              = module.naming.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this[each.key].arn
  }
}

resource "aws_route53_record" "this" {
  count = var.dns == null ? 0 : 1

  zone_id = var.dns.zone_id
  name    = var.name
  type    = "A"

  alias {
    name                   = aws_lb.this.dns_name
    zone_id                = aws_lb.this.zone_id
    evaluate_target_health = true
  }
}
