variable "name" {
  description = "Name of the cluster; prefix of the names of what is made, and label of the DNS record."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,21}[a-z0-9]$", var.name)) && !strcontains(var.name, "--")
    error_message = "name must have 2 to 23 lower-case letters, digits and single hyphens, begin with a letter and not end with a hyphen."
  }
}

variable "vpc_id" {
  description = "Network of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^vpc-[0-9a-z]+$", var.vpc_id))
    error_message = "vpc_id must be the ID of a network, like vpc-0123456789abcdef0."
  }
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

  validation {
    condition     = contains([1, 2, 3], var.replicas) && var.replicas <= var.nodes
    error_message = "replicas must be 1, 2 or 3, and not more than there are nodes."
  }
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

  validation {
    condition     = var.image_id == null || can(regex("^ami-[0-9a-f]+$", var.image_id))
    error_message = "image_id must be the ID of a machine image, like ami-0123456789abcdef0, or null."
  }
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

  validation {
    condition     = var.region_name == null || can(regex("^[a-z0-9-]{1,32}$", var.region_name))
    error_message = "region_name must have 1 to 32 lower-case letters, digits and hyphens, as --region wants."
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
  description = "ARNs of secrets in Secrets Manager: users (users.toml), tls (JSON with cert, key, ca, and crl if certificates are revoked, in PEM), admin (environment of fonnctl). Their contents never pass terraform."
  type = object({
    users = optional(string)
    tls   = optional(string)
    admin = optional(string)
  })
  nullable = false

  validation {
    condition     = alltrue([for it in values(var.secrets) : it == null || can(regex("^arn:[^:*]+:secretsmanager:[^:*]+:[0-9]{12}:secret:[^*]+$", it))])
    error_message = "secrets must be ARNs of secrets."
  }
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
    condition     = length(var.client_cidrs) >= 1 && alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "client_cidrs must be at least one IPv4 network, and not all of the internet."
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

  validation {
    condition     = var.dns == null || (can(regex("^Z[A-Z0-9]+$", var.dns.zone_id)) && can(regex("^([a-z0-9-]+\\.)+[a-z]+$", var.dns.zone_name)))
    error_message = "dns.zone_id must be the ID of a hosted zone, and dns.zone_name its name, without a dot at its end."
  }
}

variable "node_settings" {
  description = "More keys of the nodes' configuration; they win over what this module sets."
  type        = any
  default     = {}
  nullable    = false

  validation {
    # What is in the file twice is refused by the node at its start; ports are those of security groups and load balancer.
    condition     = length(setintersection(keys(var.node_settings), ["listen", "admin_listen", "cluster_listen", "node_id", "advertise", "zone", "bootstrap", "join", "users_file", "tls_cert", "tls_key", "tls_client_ca", "tls_client_crl"])) == 0
    error_message = "node_settings must not set what is set by machine or module: listen, admin_listen, cluster_listen, node_id, advertise, zone, bootstrap, join, users_file, tls_cert, tls_key, tls_client_ca, tls_client_crl."
  }
}

variable "router_settings" {
  description = "More keys of the routers' configuration. Each router advertises its machine's private name; advertise = \"HOST:PORT\" sends Redis Cluster clients to that address instead, to the load balancer for example."
  type        = any
  default     = {}
  nullable    = false

  validation {
    # What is in the file twice is refused by the router at its start; ports are those of security groups and load balancer.
    condition     = length(setintersection(keys(var.router_settings), ["listen", "admin_listen", "cluster", "users_file", "tls_cert", "tls_key", "tls_client_ca", "tls_client_crl"])) == 0
    error_message = "router_settings must not set what is set by machine or module: listen, admin_listen, cluster, users_file, tls_cert, tls_key, tls_client_ca, tls_client_crl."
  }
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
  description = "How long a node that is to end may take to hand over what it has. It ends sooner if the others have all; what they lack after that is read from the bucket, or missed."
  type        = number
  default     = 900
  nullable    = false

  validation {
    condition     = var.drain_seconds >= 10 && var.drain_seconds <= 7020 && floor(var.drain_seconds) == var.drain_seconds
    error_message = "drain_seconds must be a whole number from 10 to 7020: a hook waits two hours at most, and needs three minutes for the rest."
  }
}

variable "warmup_seconds" {
  description = "How long a new machine is given before the next one is replaced: boot, and up to two minutes for the bucket's index."
  type        = number
  default     = 180
  nullable    = false

  validation {
    condition     = var.warmup_seconds >= 0 && var.warmup_seconds <= 3600 && floor(var.warmup_seconds) == var.warmup_seconds
    error_message = "warmup_seconds must be a whole number from 0 to 3600."
  }
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
