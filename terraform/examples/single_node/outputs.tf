output "sccache" {
  description = "Shell commands that point sccache at the cache."
  value       = module.cluster.sccache_exports
}

output "dashboard" {
  description = "Address of the dashboard."
  value       = module.cluster.dashboard
}
