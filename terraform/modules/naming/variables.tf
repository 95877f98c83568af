variable "name" {
  description = "Name of the cluster: the prefix of the names of what is made."
  type        = string
  nullable    = false

  validation {
    # Load balancers and target groups have 32 characters, of which suffixes take nine.
    condition     = can(regex("^[a-z][a-z0-9-]{0,21}[a-z0-9]$", var.name)) && !strcontains(var.name, "--")
    error_message = "name must have 2 to 23 lower-case letters, digits and single hyphens, begin with a letter and not end with a hyphen."
  }
}

variable "tls" {
  description = "Whether clients speak TLS."
  type        = bool
  default     = false
  nullable    = false
}

variable "host" {
  description = "Host name under which clients reach the cache."
  type        = string
  default     = "localhost"
  nullable    = false
}

variable "tags" {
  description = "Tags of everything, beside those that this adds."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = length(setintersection(keys(var.tags), ["Name", "fonn:cluster"])) == 0
    error_message = "tags must not set Name or fonn:cluster."
  }
}
