variable "regions" {
  description = "Two AWS regions; the first one has the bucket."
  type        = list(string)
  default     = ["eu-central-1", "us-east-1"]

  validation {
    condition     = length(var.regions) == 2 && length(distinct(var.regions)) == 2
    error_message = "regions must be two different ones."
  }
}

variable "shared" {
  description = "One bucket for both regions, instead of one each with replication."
  type        = bool
  default     = true
}

variable "bucket" {
  description = "Name of the first region's bucket."
  type        = string
}

variable "networks" {
  description = "Network of each region, in the order of regions."
  type = list(object({
    vpc_id           = string
    subnet_ids       = list(string)
    client_cidrs     = list(string)
    users_secret_arn = string
    tls_secret_arn   = string
  }))

  validation {
    condition     = length(var.networks) == 2
    error_message = "networks must be two, in the order of regions."
  }
}

variable "release" {
  description = "Release archive, as deploy/package makes it: its URL (https:// or s3://) and SHA-256."
  type        = object({ url = string, sha256 = string })
}
