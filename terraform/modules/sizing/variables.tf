variable "instance_type" {
  description = "Machine type of the nodes."
  type        = string
  nullable    = false

  validation {
    condition     = contains(keys(local.machines), var.instance_type)
    error_message = "instance_type must be one with a single local NVMe disk: ${join(", ", keys(local.machines))}."
  }
}

variable "nodes" {
  description = "Number of nodes."
  type        = number
  nullable    = false

  validation {
    condition     = var.nodes >= 1 && var.nodes <= 100 && floor(var.nodes) == var.nodes
    error_message = "nodes must be a whole number from 1 to 100."
  }
}

variable "replicas" {
  description = "Copies of an entry on different nodes."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = contains([1, 2, 3], var.replicas) && var.replicas <= var.nodes
    error_message = "replicas must be 1, 2 or 3, and not more than there are nodes."
  }
}

variable "entry_kib" {
  description = "Mean size of an entry in KiB, for the estimate of how many fit."
  type        = number
  default     = 200
  nullable    = false

  validation {
    condition     = var.entry_kib > 0
    error_message = "entry_kib must be above 0."
  }
}
