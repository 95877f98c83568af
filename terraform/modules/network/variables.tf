variable "name" {
  description = "Name of the network."
  type        = string
  nullable    = false
}

variable "cidr" {
  description = "Addresses of the network; each zone gets a 256th of it."
  type        = string
  default     = "10.64.0.0/16"
  nullable    = false

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && can(regex("/1[6-9]$|/20$", var.cidr))
    error_message = "cidr must be an IPv4 network from /16 to /20."
  }
}

variable "zones" {
  description = "Availability zones, one subnet each."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.zones) >= 1 && length(var.zones) <= 6 && length(distinct(var.zones)) == length(var.zones)
    error_message = "zones must be one to six different zones."
  }
}

variable "nat" {
  description = "A NAT gateway for the way out, instead of interface endpoints. One, in the first zone."
  type        = bool
  default     = false
  nullable    = false
}

variable "flow_log_bucket_arn" {
  description = "Bucket for flow logs; null for none."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
