output "vpc_id" {
  description = "The network."
  value       = aws_vpc.this.id
}

output "subnet_ids" {
  description = "Private subnets, one a zone."
  value       = [for zone in var.zones : aws_subnet.private[zone].id]
}

output "cidr" {
  description = "Addresses of the network."
  value       = aws_vpc.this.cidr_block
}
