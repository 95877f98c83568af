variable "name" {
  description = "Name of the cluster; prefix of the names of what is made, and label of the DNS record."
  type        = string
  nullable    = false
}

variable "vpc_id" {
  description = "Network of the cluster."
  type        = string
  nullable    = false
}

variable "subnet_ids" {
  description = "Private subnets, one a zone. Machines are spread over them evenly."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.subnet_ids) >= 1 && length(distinct(var.subnet_ids)) == length(var.subnet_ids)
    error_message = "subnet_ids must be at least one subnet, each once."
  }
}

variable "node_type" {
  description = "Machine type of the nodes; see ../sizing for those that are known."
  type        = string
  default     = "i4i.large"
  nullable    = false
}

variable "nodes" {
  description = "Number of nodes. One, or three and more: two have no majority when one is lost."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.nodes != 2
    error_message = "nodes must be 1, or 3 and more: of two no majority is left when one is lost."
  }
}

variable "replicas" {
  description = "Copies of an entry on different nodes, for the estimate of what fits. What the cluster keeps is set with `fonnctl`."
  type        = number
  default     = 1
  nullable    = false
}

variable "router_type" {
  description = "Machine type of the routers, of the same architecture as the nodes."
  type        = string
  default     = "c6i.large"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+[0-9]+g[a-z]*\\.", var.router_type)) == startswith(var.node_type, "i4g")
    error_message = "router_type and node_type must have the same architecture: one release archive serves both."
  }
}

variable "routers" {
  description = "Number of routers."
  type        = number
  default     = 2
  nullable    = false

  validation {
    condition     = var.routers >= 1 && floor(var.routers) == var.routers
    error_message = "routers must be a whole number from 1 on."
  }
}

variable "image_id" {
  description = "Machine image, Amazon Linux 2023. null: the newest one at each apply, so that an apply may replace machines."
  type        = string
  default     = null
}

variable "cold_tier" {
  description = "Bucket, prefix, AWS region (null: the cluster's own), key if it is encrypted with one, and budget (bytes like 500g; null: unlimited)."
  type = object({
    bucket      = string
    prefix      = string
    region      = optional(string)
    kms_key_arn = optional(string)
    budget      = optional(string)
  })
  nullable = false

  validation {
    condition     = var.cold_tier.budget == null || can(regex("^[0-9]+[kmgt]?$", var.cold_tier.budget))
    error_message = "cold_tier.budget must be bytes, or a number with k, m, g or t."
  }
}

variable "region_name" {
  description = "Name of this cluster in a shared bucket (--region); null: the AWS region."
  type        = string
  default     = null
}

variable "release" {
  description = "Release archive, as deploy/package makes it: its URL (https:// or s3://) and SHA-256."
  type        = object({ url = string, sha256 = string })
  nullable    = false
}

variable "secrets" {
  description = "ARNs of secrets in Secrets Manager: users (users.toml), tls (JSON with cert, key, ca in PEM), admin (environment of fonnctl). Their contents never pass terraform."
  type = object({
    users = optional(string)
    tls   = optional(string)
    admin = optional(string)
  })
  nullable = false
}

# Said, not used: its validation is the purpose.
# tflint-ignore: terraform_unused_declarations
variable "allow_anonymous" {
  description = "Run without users: whoever reaches the port may read and write everything."
  type        = bool
  default     = false
  nullable    = false

  validation {
    condition     = var.allow_anonymous || var.secrets.users != null
    error_message = "secrets.users must name a secret with users.toml, or allow_anonymous must be true."
  }

  validation {
    condition     = var.allow_anonymous || var.secrets.tls != null
    error_message = "secrets.tls must name a secret with a certificate, by which members and routers know each other, or allow_anonymous must be true."
  }
}

variable "client_cidrs" {
  description = "Addresses of the machines that build."
  type        = list(string)
  nullable    = false

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "client_cidrs must be IPv4 networks, and not all of the internet."
  }
}

variable "admin_cidrs" {
  description = "Addresses of operators and of Prometheus."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for cidr in var.admin_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "admin_cidrs must be IPv4 networks, and not all of the internet."
  }
}

variable "dns" {
  description = "Hosted zone in which the cluster gets a record under its name; null: the load balancer's own name."
  type        = object({ zone_id = string, zone_name = string })
  default     = null
}

variable "node_settings" {
  description = "More keys of the nodes' configuration; they win over what this module sets."
  type        = any
  default     = {}
  nullable    = false
}

variable "router_settings" {
  description = "More keys of the routers' configuration."
  type        = any
  default     = {}
  nullable    = false
}

variable "metrics" {
  description = "Output `machines` of the observability module: workspace, packages, files and commands of the agent. null: none."
  type = object({
    workspace_arn = string
    packages      = list(string)
    files         = map(map(string))
    commands      = list(list(string))
  })
  default = null
}

variable "drain_seconds" {
  description = "How long a drained node goes on answering for what it has, before it is removed and ends."
  type        = number
  default     = 120
  nullable    = false
}

variable "warmup_seconds" {
  description = "How long a new machine is given before the next one is replaced."
  type        = number
  default     = 180
  nullable    = false
}

variable "session_manager" {
  description = "Let operators open a shell through AWS Systems Manager."
  type        = bool
  default     = false
  nullable    = false
}

variable "deletion_protection" {
  description = "Refuse to delete the load balancer."
  type        = bool
  default     = true
  nullable    = false
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
  nullable    = false
}
