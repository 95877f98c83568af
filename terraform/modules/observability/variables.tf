variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false
}

variable "account_id" {
  description = "AWS account, to which publishing to the topic is limited."
  type        = string
  nullable    = false
}

variable "emails" {
  description = "Addresses that get alerts; each has to confirm once."
  type        = set(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for it in var.emails : can(regex("^[^@ ]+@[^@ ]+$", it))])
    error_message = "emails must be addresses."
  }
}

variable "scrape_seconds" {
  description = "How often metrics are read. Amazon Managed Prometheus bills by samples."
  type        = number
  default     = 30
  nullable    = false

  validation {
    condition     = var.scrape_seconds >= 5 && var.scrape_seconds <= 60
    error_message = "scrape_seconds must be from 5 to 60: alerts count on a value a minute."
  }
}

variable "tls" {
  description = "The admin ports speak TLS."
  type        = bool
  default     = false
  nullable    = false
}

variable "topic_kms_key" {
  description = "Key of the topic."
  type        = string
  default     = "alias/aws/sns"
  nullable    = false
}

variable "runbook_base" {
  description = "Put before docs/operations/… in the links to runbooks, with a slash at its end."
  type        = string
  default     = ""
  nullable    = false
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
