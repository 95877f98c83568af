output "architecture" {
  description = "Architecture of the programs: x86_64 or arm64."
  value       = local.machine.architecture
}

output "ram_budget" {
  description = "For --ram-budget."
  value       = "${local.ram_percent}%"
}

output "disk_budget" {
  description = "For --disk-budget."
  value       = "${local.disk_budget_mib}m"
}

output "entries" {
  description = "About how many different entries fit on the disks of the cluster."
  value       = floor(local.entries / var.replicas)
}

output "dollars_a_month" {
  description = "On-demand price of the nodes in us-east-1 for 730 hours, without traffic, bucket and load balancer."
  value       = floor(local.machine.dollars_an_hour * var.nodes * 730 * 100 + 0.5) / 100
}
