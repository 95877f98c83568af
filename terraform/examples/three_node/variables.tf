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
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "client_cidrs must be IPv4 networks, and not all of the internet."
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

variable "bucket" {
  description = "Name of the bucket that is made."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "secrets" {
  description = "ARNs of secrets: users, tls, admin; see ../../modules/cluster."
  type        = object({ users = string, tls = string, admin = string })

  validation {
    condition     = alltrue([for it in values(var.secrets) : can(regex("^arn:[^:*]+:secretsmanager:[^:*]+:[0-9]{12}:secret:[^*]+$", it))])
    error_message = "secrets must be ARNs of secrets: users, tls and admin."
  }
}

variable "dns" {
  description = "Private hosted zone, which the certificate names."
  type        = object({ zone_id = string, zone_name = string })

  validation {
    condition     = can(regex("^Z[A-Z0-9]+$", var.dns.zone_id)) && can(regex("^([a-z0-9-]+\\.)+[a-z]+$", var.dns.zone_name))
    error_message = "dns.zone_id must be the ID of a hosted zone, and dns.zone_name its name, without a dot at its end."
  }
}

variable "emails" {
  description = "Addresses that get alerts."
  type        = set(string)

  validation {
    condition     = length(var.emails) >= 1 && alltrue([for it in var.emails : can(regex("^[^@ ]+@[^@ ]+$", it))])
    error_message = "emails must be at least one address: alerts that nobody gets are none."
  }
}
