output "ports" {
  description = "Ports by purpose: client, node_admin, router_admin, cluster."
  value       = local.ports
}

output "nodes" {
  description = "Name of the nodes' group, role and security group."
  value       = "${var.name}-node"
}

output "routers" {
  description = "Name of the routers' group, role, security group, load balancer and target group."
  value       = "${var.name}-router"
}

output "claim" {
  description = "Parameter by which nodes agree which of them forms the cluster."
  value       = "/fonn/${var.name}/bootstrap"
}

output "tags" {
  description = "Tags of everything."
  value       = merge(var.tags, { "fonn:cluster" = var.name })
}

output "sccache_environment" {
  description = "Variables that point sccache at the cache; user name and password go into SCCACHE_REDIS_USERNAME and SCCACHE_REDIS_PASSWORD."
  value = {
    SCCACHE_REDIS_ENDPOINT   = "${local.scheme.redis}://${var.host}:${local.ports.client}"
    SCCACHE_REDIS_KEY_PREFIX = var.name
    SCCACHE_REDIS_EXPIRATION = "0"
  }
}

output "dashboard" {
  description = "Address of the dashboard."
  value       = "${local.scheme.http}://${var.host}:${local.ports.router_admin}/"
}
