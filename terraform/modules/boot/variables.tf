variable "role" {
  description = "node or router."
  type        = string
  nullable    = false

  validation {
    condition     = contains(["node", "router"], var.role)
    error_message = "role must be node or router."
  }
}

variable "region" {
  description = "AWS region of the machines."
  type        = string
  nullable    = false
}

variable "node_group" {
  description = "Name of the nodes' group, by which members are found."
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
}

variable "cluster_port" {
  description = "Port of the members among each other."
  type        = number
  nullable    = false
}

variable "client_port" {
  description = "Port of the routers for clients."
  type        = number
  nullable    = false
}

variable "lifecycle_hook" {
  description = "Name of the hook that waits for the drain."
  type        = string
  nullable    = false
}

variable "drain_seconds" {
  description = "How long a node that is to end may take to hand over what it has. It ends sooner if the others have all; what they lack after that is read from the bucket, or missed."
  type        = number
  default     = 900
  nullable    = false

  validation {
    condition     = var.drain_seconds >= 10 && var.drain_seconds <= 7020 && floor(var.drain_seconds) == var.drain_seconds
    error_message = "drain_seconds must be a whole number from 10 to 7020: a hook waits two hours at most, and needs three minutes for the rest."
  }
}

variable "release" {
  description = "Release archive, as deploy/package makes it: its URL (https:// or s3://) and SHA-256."
  type        = object({ url = string, sha256 = string })
  nullable    = false

  validation {
    condition     = can(regex("^(https|s3)://[^' ]+$", var.release.url)) && can(regex("^[0-9a-f]{64}$", var.release.sha256))
    error_message = "release.url must begin with https:// or s3://, and release.sha256 must have 64 hexadecimal digits."
  }
}

variable "secrets" {
  description = "ARNs of secrets: users (users.toml), tls (JSON with cert, key, ca, and crl if certificates are revoked, in PEM), admin (environment of fonnctl). Without users everybody who reaches the port may read and write."
  type = object({
    users = optional(string)
    tls   = optional(string)
    admin = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.secrets.users == null || var.secrets.tls != null
    error_message = "secrets.users needs secrets.tls: passwords would cross the network in the clear, so node and router refuse to start."
  }
}

variable "settings" {
  description = "Keys of the configuration file."
  type        = any
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([for key, value in var.settings :
      can(regex("^[a-z][a-z0-9_]*$", key)) && (can(tostring(value)) || can([for it in tolist(value) : tostring(it)]))
    ])
    error_message = "settings must be keys of the configuration file with strings, numbers, booleans or lists of strings."
  }
}

variable "packages" {
  description = "Packages of the distribution that are wanted, too."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "extra_files" {
  description = "More files by path."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "extra_commands" {
  description = "More commands for the first boot."
  type        = list(list(string))
  default     = []
  nullable    = false
}
