variable "partition" {
  description = "aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
  nullable    = false

  validation {
    condition     = contains(["aws", "aws-cn", "aws-us-gov"], var.partition)
    error_message = "partition must be aws, aws-cn or aws-us-gov."
  }
}

variable "region" {
  description = "AWS region of the cluster."
  type        = string
  nullable    = false
}

variable "account_id" {
  description = "AWS account of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account_id))
    error_message = "account_id must have 12 digits."
  }
}

variable "bucket" {
  description = "Name of the cold tier's bucket."
  type        = string
  nullable    = false

  validation {
    # A wildcard would widen every statement.
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of a bucket."
  }
}

variable "prefix" {
  description = "Prefix below which the cluster keeps its segments, without slashes at its ends."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$", var.prefix))
    error_message = "prefix must be made of letters, digits, _ . - and single slashes inside."
  }
}

variable "writer_roles" {
  description = "Names of the roles that may write and delete below the prefix, with their paths; * at the end stands for any suffix. None: the bucket's policy leaves it to other policies."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    # A wildcard elsewhere, or with little before it, would let strangers' roles in.
    condition     = alltrue([for role in var.writer_roles : can(regex("^[A-Za-z0-9+=,.@_/-]{3,}[*]?$", role))])
    error_message = "writer_roles must be names of roles, of three characters or more, and a * at the end at most."
  }
}

variable "kms_key_arn" {
  description = "Key that the bucket is encrypted with; null with the bucket's own keys."
  type        = string
  default     = null
}

variable "secret_arns" {
  description = "Secrets that machines read at boot: users, certificates, credentials of fonnctl."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for arn in var.secret_arns : can(regex("^arn:[^:*]+:secretsmanager:[^:*]+:[0-9]{12}:secret:[^*]+$", arn))])
    error_message = "secret_arns must be ARNs of secrets, without wildcards."
  }
}

variable "release_object_arn" {
  description = "Object with the release archive, if it is in a bucket."
  type        = string
  default     = null
}

variable "metrics_workspace_arn" {
  description = "Workspace of Amazon Managed Prometheus that machines write to."
  type        = string
  default     = null
}

variable "node_group" {
  description = "Name of the nodes' group."
  type        = string
  nullable    = false
}

variable "router_group" {
  description = "Name of the routers' group."
  type        = string
  nullable    = false
}

variable "claim" {
  description = "Parameter below which a node claims to form the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^/[^*]+[^*/]$", var.claim))
    error_message = "claim must begin with a slash, not end with one, and have no wildcard."
  }
}

variable "replica_buckets" {
  description = "Buckets that this one is replicated to."
  type        = list(string)
  default     = []
  nullable    = false
}
