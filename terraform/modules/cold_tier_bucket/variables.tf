variable "bucket" {
  description = "Name of the bucket."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "prefix" {
  description = "Prefix below which clusters keep their segments."
  type        = string
  default     = "fonn"
  nullable    = false
}

variable "writer_roles" {
  description = "Names of the roles that may write and delete below the prefix, * for any suffix: those of the nodes are NAME-node-*, by the cluster's name. Every other principal of the account is denied."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.writer_roles) > 0
    error_message = "writer_roles must name a role: without one no node could write."
  }
}

variable "kms_key_arn" {
  description = "Key to encrypt with; null: the bucket's own keys."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || !var.replicated
    error_message = "kms_key_arn and replication do not go together here: replicas would need keys in every region."
  }
}

variable "backstop_days" {
  description = "Objects older than this are deleted behind Fonn's back; longer than you want to keep entries. null: never."
  type        = number
  default     = null

  validation {
    condition     = var.backstop_days == null || try(var.backstop_days >= 30, false)
    error_message = "backstop_days must be 30 or more: segments that entries are still read from would vanish."
  }
}

variable "replicated" {
  description = "The bucket is one end of a replication (../bucket_replication), so it keeps versions for a day."
  type        = bool
  default     = false
  nullable    = false
}

variable "log_bucket" {
  description = "Bucket for access logs; null for none."
  type        = string
  default     = null
}

variable "force_destroy" {
  description = "Delete the bucket with what is in it."
  type        = bool
  default     = false
  nullable    = false
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
