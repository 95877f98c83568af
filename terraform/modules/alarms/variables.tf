variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false
}

variable "groups" {
  description = "Names of the groups of machines, by role."
  type        = map(string)
  nullable    = false
}

variable "load_balancer" {
  description = "ARN suffix of the load balancer."
  type        = string
  nullable    = false
}

variable "target_group" {
  description = "ARN suffix of the routers' target group."
  type        = string
  nullable    = false
}

variable "topic_arn" {
  description = "Topic that is told."
  type        = string
  nullable    = false
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
