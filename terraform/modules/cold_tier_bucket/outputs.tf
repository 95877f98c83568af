output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
  # What uses the bucket waits for what makes it safe; replication for versions.
  depends_on = [aws_s3_bucket_policy.this, aws_s3_bucket_versioning.this]
}

output "prefix" {
  description = "Prefix below which clusters keep their segments."
  value       = var.prefix
}

output "url" {
  description = "For --cold-tier."
  value       = "s3://${var.bucket}/${var.prefix}"
}

output "kms_key_arn" {
  description = "Key that the bucket is encrypted with, or null."
  value       = var.kms_key_arn
}

output "region" {
  description = "AWS region of the bucket."
  value       = data.aws_region.current.region
}
