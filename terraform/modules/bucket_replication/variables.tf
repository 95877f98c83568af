variable "source_bucket" {
  description = "Bucket whose segments are copied; it and the others are made with replicated = true."
  type        = string
  nullable    = false
}

variable "destination_buckets" {
  description = "Buckets in other regions that get a copy of every segment."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.destination_buckets) > 0 && !contains(var.destination_buckets, var.source_bucket)
    error_message = "destination_buckets must name at least one bucket, and not the source itself."
  }
}

variable "prefix" {
  description = "Prefix below which clusters keep their segments."
  type        = string
  default     = "fonn"
  nullable    = false
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
