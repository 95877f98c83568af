output "user_data" {
  description = "User data, compressed and in base64, for a launch template."
  value       = base64gzip(local.user_data)

  precondition {
    # EC2 takes 16 KiB before base64; this counts base64's third more, to be on the safe side.
    condition     = length(base64gzip(local.user_data)) <= 16384
    error_message = "The user data is too long for EC2 (16 KiB): fewer settings or files."
  }
}

output "cloud_config" {
  description = "The same in plain text."
  value       = local.user_data
}

output "base_toml" {
  description = "The part of the configuration that all machines of the role share."
  value       = local.base_toml
}

output "boot_env" {
  description = "Settings of the boot script."
  value       = local.boot_env
}
