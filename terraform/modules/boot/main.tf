# What a machine is given at its first start: the scripts as they are in scripts/, their settings, and the part of the
# configuration that all machines of a role share. No provider is needed.

locals {
  # For the shell: in single quotes, so that nothing in a value means anything.
  environment = {
    ROLE           = var.role
    REGION         = var.region
    GROUP          = var.role == "node" ? var.node_group : var.router_group
    NODE_GROUP     = var.node_group
    HOOK           = var.lifecycle_hook
    CLAIM          = var.claim
    CLUSTER_PORT   = tostring(var.cluster_port)
    CLIENT_PORT    = tostring(var.client_port)
    RELEASE_URL    = var.release.url
    RELEASE_SHA256 = var.release.sha256
    USERS_SECRET   = coalesce(var.secrets.users, " ")
    TLS_SECRET     = coalesce(var.secrets.tls, " ")
    ADMIN_SECRET   = coalesce(var.secrets.admin, " ")
    DRAIN_SECONDS  = tostring(var.drain_seconds)
  }
  boot_env = join("", [for key, value in local.environment : "${key}='${trimspace(value)}'\n"])

  access = merge(
    var.secrets.users == null ? { insecure = true } : {},
    var.secrets.users == null ? {} : { users_file = "/etc/fonn/users.toml" },
    var.secrets.tls == null ? {} : { tls_cert = "/etc/fonn/cert.pem", tls_key = "/etc/fonn/key.pem", tls_client_ca = "/etc/fonn/ca.pem" },
  )
  settings = merge({ log_format = "json" }, local.access, var.settings)
  # JSON's strings, numbers, booleans and lists of strings are TOML's, too.
  base_toml = join("", [for key, value in local.settings : "${key} = ${jsonencode(value)}\n"])

  files = merge({
    "/etc/fonn/boot.env"                         = { mode = "0600", text = local.boot_env }
    "/etc/fonn/base.toml"                        = { mode = "0640", text = local.base_toml }
    "/usr/local/sbin/fonn-boot"                  = { mode = "0755", text = file("${path.module}/scripts/fonn-boot") }
    "/usr/local/sbin/fonn-lifecycle"             = { mode = "0755", text = file("${path.module}/scripts/fonn-lifecycle") }
    "/etc/systemd/system/fonn-boot.service"      = { mode = "0644", text = file("${path.module}/scripts/fonn-boot.service") }
    "/etc/systemd/system/fonn-lifecycle.service" = { mode = "0644", text = file("${path.module}/scripts/fonn-lifecycle.service") }
  }, { for path, text in var.extra_files : path => { mode = "0644", text = text } })

  # JSON is YAML, which cloud-init wants.
  cloud_config = jsonencode({
    write_files = [for path, it in local.files : {
      path        = path
      permissions = it.mode
      encoding    = "gz+b64"
      content     = base64gzip(it.text)
    }]
    packages = var.packages
    runcmd = concat(
      [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "fonn-boot.service", "fonn-lifecycle.service"]],
      var.extra_commands,
    )
  })
  user_data = "#cloud-config\n${local.cloud_config}\n"
}
