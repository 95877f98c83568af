variable "release" {
  description = "Release archive, as deploy/package makes it: its URL (https:// or s3://) and SHA-256."
  type        = object({ url = string, sha256 = string })

  validation {
    condition     = can(regex("^(https|s3)://[^' ]+$", var.release.url)) && can(regex("^[0-9a-f]{64}$", var.release.sha256))
    error_message = "release.url must begin with https:// or s3://, and release.sha256 must have 64 hexadecimal digits."
  }
}

variable "client_cidrs" {
  description = "Addresses of the machines that build."
  type        = list(string)

  validation {
    condition     = length(var.client_cidrs) >= 1 && alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "client_cidrs must be at least one IPv4 network, and not all of the internet."
  }
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-central-1"

  validation {
    condition     = can(regex("^[a-z]{2,3}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be an AWS region, like eu-central-1."
  }
}

variable "subnet_id" {
  description = "Private subnet with a way to S3, EC2, Auto Scaling, Systems Manager and Secrets Manager."
  type        = string

  validation {
    condition     = can(regex("^subnet-[0-9a-z]+$", var.subnet_id))
    error_message = "subnet_id must be the ID of a subnet, like subnet-0123456789abcdef0."
  }
}

variable "bucket" {
  description = "Name of the bucket that is made."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "users_secret_arn" {
  description = "Secret with users.toml."
  type        = string

  validation {
    condition     = can(regex("^arn:[^:*]+:secretsmanager:[^:*]+:[0-9]{12}:secret:[^*]+$", var.users_secret_arn))
    error_message = "users_secret_arn must be the ARN of a secret."
  }
}

variable "tls_secret_arn" {
  description = "Secret with certificate, key and authority of the machines; see ../../README.md."
  type        = string

  validation {
    condition     = can(regex("^arn:[^:*]+:secretsmanager:[^:*]+:[0-9]{12}:secret:[^*]+$", var.tls_secret_arn))
    error_message = "tls_secret_arn must be the ARN of a secret."
  }
}
