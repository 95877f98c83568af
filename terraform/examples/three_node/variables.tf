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

variable "bucket" {
  description = "Name of the bucket that is made."
  type        = string
}

variable "secrets" {
  description = "ARNs of secrets: users, tls, admin; see ../../modules/cluster."
  type        = object({ users = string, tls = string, admin = string })
}

variable "dns" {
  description = "Private hosted zone, which the certificate names."
  type        = object({ zone_id = string, zone_name = string })
}

variable "emails" {
  description = "Addresses that get alerts."
  type        = set(string)
}
