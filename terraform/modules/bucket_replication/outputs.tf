output "role_arn" {
  description = "Role with which S3 replicates."
  value       = aws_iam_role.this.arn
}
