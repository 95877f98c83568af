output "sccache_environment" {
  description = "Variables that point sccache at the cache."
  value       = module.naming.sccache_environment
}

output "sccache_exports" {
  description = "The same as shell commands."
  value       = join("\n", [for key, value in module.naming.sccache_environment : "export ${key}=${value}"])
}

output "dashboard" {
  description = "Address of the dashboard."
  value       = module.naming.dashboard
}

output "host" {
  description = "Host name of the cache."
  value       = local.host
}

output "groups" {
  description = "Names of the groups of machines, by role."
  value       = { for role, group in aws_autoscaling_group.this : role => group.name }
}

output "role_names" {
  description = "Names of the machines' roles, by role."
  value       = { for role, it in aws_iam_role.this : role => it.name }
}

output "security_group_ids" {
  description = "Security groups, by role."
  value       = { for role, group in aws_security_group.this : role => group.id }
}

output "load_balancer_arn_suffix" {
  description = "For alarms."
  value       = aws_lb.this.arn_suffix
}

output "target_group_arn_suffix" {
  description = "For alarms: the routers' cache port."
  value       = aws_lb_target_group.this["cache"].arn_suffix
}

output "entries" {
  description = "About how many entries of 200 KiB fit on the disks."
  value       = module.sizing.entries
}

output "dollars_a_month" {
  description = "Price of the nodes alone, on demand in us-east-1."
  value       = module.sizing.dollars_a_month
}
