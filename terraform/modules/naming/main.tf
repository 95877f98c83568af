# Names, ports, tags and addresses that several modules must agree on. No provider is needed.

locals {
  # The programs' defaults; the cluster port has none.
  ports = { client = 11211, node_admin = 11280, router_admin = 11281, cluster = 11290 }

  scheme = var.tls ? { redis = "rediss", http = "https" } : { redis = "redis", http = "http" }
}
