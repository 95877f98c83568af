variable "release" {
  description = "Release archive, as deploy/package makes it: its URL (https:// or s3://) and SHA-256."
  type        = object({ url = string, sha256 = string })
}

variable "client_cidrs" {
  description = "Addresses of the machines that build."
  type        = list(string)
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"
}

variable "subnet_id" {
  description = "Private subnet with a way to S3, EC2, Auto Scaling, Systems Manager and Secrets Manager."
  type        = string
}

variable "bucket" {
  description = "Name of the bucket that is made."
  type        = string
}

variable "users_secret_arn" {
  description = "Secret with users.toml."
  type        = string
}

variable "tls_secret_arn" {
  description = "Secret with certificate, key and authority of the machines; see ../../README.md."
  type        = string
}
