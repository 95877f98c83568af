variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,21}[a-z0-9]$", var.name)) && !strcontains(var.name, "--")
    error_message = "name must have 2 to 23 lower-case letters, digits and single hyphens, begin with a letter and not end with a hyphen."
  }
}

variable "groups" {
  description = "Names of the groups of machines, by role."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(var.groups) >= 1 && length(distinct(values(var.groups))) == length(var.groups) && alltrue([for it in values(var.groups) : can(regex("^[a-z][a-z0-9-]+$", it))])
    error_message = "groups must be the names of at least one group, each once: the cluster module's output groups."
  }
}

variable "load_balancer" {
  description = "ARN suffix of the load balancer."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^net/[^/]+/[^/]+$", var.load_balancer))
    error_message = "load_balancer must be the end of a network load balancer's ARN, net/NAME/ID: an alarm on another name never has data."
  }
}

variable "target_group" {
  description = "ARN suffix of the routers' target group."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^targetgroup/[^/]+/[^/]+$", var.target_group))
    error_message = "target_group must be the end of a target group's ARN, targetgroup/NAME/ID."
  }
}

variable "topic_arn" {
  description = "Topic that is told."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^arn:[^:*]+:sns:[^:*]+:[0-9]{12}:[^:*]+$", var.topic_arn))
    error_message = "topic_arn must be the ARN of a topic."
  }
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
