# A cluster in one region: nodes with a local disk and routers behind an internal load balancer, each as a group over zones.
# Names, budgets, rights and what machines do at boot come from the provider-free modules beside this one.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

data "aws_vpc" "this" {
  id = var.vpc_id
}

data "aws_ssm_parameter" "image" {
  count = var.image_id == null ? 1 : 0

  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${module.sizing.architecture}"
}

module "naming" {
  source = "../naming"

  name = var.name
  tls  = var.secrets.tls != null
  host = local.host
  tags = var.tags
}

module "sizing" {
  source = "../sizing"

  instance_type = var.node_type
  nodes         = var.nodes
  replicas      = var.replicas
}

module "access" {
  source = "../access"

  partition             = data.aws_partition.current.partition
  region                = local.region
  account_id            = data.aws_caller_identity.current.account_id
  bucket                = var.cold_tier.bucket
  prefix                = var.cold_tier.prefix
  kms_key_arn           = var.cold_tier.kms_key_arn
  secret_arns           = [for arn in values(var.secrets) : arn if arn != null]
  release_object_arn    = local.release_object_arn
  metrics_workspace_arn = try(var.metrics.workspace_arn, null)
  node_group            = module.naming.nodes
  router_group          = module.naming.routers
  claim                 = module.naming.claim
}

locals {
  region = data.aws_region.current.region
  ports  = module.naming.ports
  host   = var.dns == null ? aws_lb.this.dns_name : "${var.name}.${var.dns.zone_name}"

  release_object_arn = startswith(var.release.url, "s3://") ? "arn:${data.aws_partition.current.partition}:s3:::${trimprefix(var.release.url, "s3://")}" : null

  # And a minute to remove it, twenty seconds to stop, and what the calls before and after take; 7,200 at most.
  hook_seconds = var.drain_seconds + 180

  roles = {
    node = {
      group     = module.naming.nodes
      type      = var.node_type
      machines  = var.nodes
      policy    = module.access.node
      user_data = module.boot["node"].user_data
      admin     = local.ports.node_admin
    }
    router = {
      group     = module.naming.routers
      type      = var.router_type
      machines  = var.routers
      policy    = module.access.router
      user_data = module.boot["router"].user_data
      admin     = local.ports.router_admin
    }
  }

  settings = {
    node = merge({
      listen         = ["0.0.0.0:${local.ports.client}"]
      admin_listen   = "0.0.0.0:${local.ports.node_admin}"
      cluster_listen = "0.0.0.0:${local.ports.cluster}"
      ram_budget     = module.sizing.ram_budget
      disk_budget    = module.sizing.disk_budget
      cold_tier      = "s3://${var.cold_tier.bucket}/${var.cold_tier.prefix}"
      s3_region      = coalesce(var.cold_tier.region, local.region)
      region         = coalesce(var.region_name, local.region)
    }, var.cold_tier.budget == null ? {} : { cold_budget = var.cold_tier.budget }, var.node_settings)
    router = merge({
      listen       = ["0.0.0.0:${local.ports.client}"]
      admin_listen = "0.0.0.0:${local.ports.router_admin}"
      # The dashboard's name. Over TLS the certificate says by which names the port is called.
    }, var.secrets.tls == null ? { admin_host = [local.host] } : {}, var.router_settings)
  }
}

module "boot" {
  source   = "../boot"
  for_each = local.settings

  role           = each.key
  region         = local.region
  node_group     = module.naming.nodes
  router_group   = module.naming.routers
  claim          = module.naming.claim
  cluster_port   = local.ports.cluster
  client_port    = local.ports.client
  lifecycle_hook = "drain"
  drain_seconds  = var.drain_seconds
  release        = var.release
  secrets        = var.secrets
  settings       = each.value
  packages       = try(var.metrics.packages, [])
  extra_files    = try(var.metrics.files[each.key], {})
  extra_commands = try(var.metrics.commands, [])
}
