output "sccache" {
  description = "Shell commands that point sccache at the cache, by region."
  value       = { (var.regions[0]) = module.first.sccache_exports, (var.regions[1]) = module.second.sccache_exports }
}
