variables {
  role           = "node"
  region         = "eu-central-1"
  node_group     = "ci-node"
  router_group   = "ci-router"
  claim          = "/fonn/ci/bootstrap"
  cluster_port   = 11290
  client_port    = 11211
  lifecycle_hook = "drain"
  release        = { url = "s3://releases/fonn.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  secrets = {
    users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"
    tls   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf"
  }
  settings = { listen = ["0.0.0.0:11211"], threads = 2, ram_budget = "70%" }
}

run "settings_become_toml" {
  command = plan
  assert {
    condition     = output.base_toml == "listen = [\"0.0.0.0:11211\"]\nlog_format = \"json\"\nram_budget = \"70%\"\nthreads = 2\ntls_cert = \"/etc/fonn/cert.pem\"\ntls_client_ca = \"/etc/fonn/ca.pem\"\ntls_key = \"/etc/fonn/key.pem\"\nusers_file = \"/etc/fonn/users.toml\"\n"
    error_message = output.base_toml
  }
}

run "the_script_is_the_file" {
  command = plan
  assert {
    condition = one([for it in jsondecode(trimprefix(output.cloud_config, "#cloud-config\n")).write_files :
    it.content if it.path == "/usr/local/sbin/fonn-boot"]) == base64gzip(file("./scripts/fonn-boot"))
    error_message = "the boot script in the user data is not scripts/fonn-boot"
  }
}

run "no_users_is_said_aloud" {
  command = plan
  variables {
    secrets = {}
  }
  assert {
    condition     = strcontains(output.base_toml, "insecure = true\n") && strcontains(output.boot_env, "USERS_SECRET=''\n")
    error_message = output.base_toml
  }
}

run "certificates_come_from_a_secret" {
  command = plan
  variables {
    role    = "router"
    secrets = { tls = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf" }
  }
  assert {
    condition     = strcontains(output.base_toml, "tls_client_ca = \"/etc/fonn/ca.pem\"\n") && strcontains(output.boot_env, "\nGROUP='ci-router'\n")
    error_message = output.base_toml
  }
}

run "passwords_need_a_certificate" {
  command = plan
  variables {
    secrets = { users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf" }
  }
  expect_failures = [var.secrets]
}

run "a_router_knows_the_port_that_it_advertises" {
  command = plan
  variables {
    role        = "router"
    client_port = 6379
  }
  assert {
    condition     = strcontains("\n${output.boot_env}", "\nCLIENT_PORT='6379'\n")
    error_message = output.boot_env
  }
}

run "a_role_that_is_none_is_refused" {
  command = plan
  variables {
    role = "worker"
  }
  expect_failures = [var.role]
}

run "a_url_cannot_leave_its_quotes" {
  command = plan
  variables {
    release = { url = "https://example.com/a';reboot;'", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
  expect_failures = [var.release]
}

run "a_checksum_has_to_be_one" {
  command = plan
  variables {
    release = { url = "https://example.com/fonn.tar.gz", sha256 = "" }
  }
  expect_failures = [var.release]
}

run "a_setting_that_is_a_table_is_refused" {
  command = plan
  variables {
    settings = { user = { name = "x" } }
  }
  expect_failures = [var.settings]
}

run "user_data_that_is_too_long_is_refused" {
  command = plan
  variables {
    # Hashes do not compress.
    extra_files = { "/etc/x" = join("", [for i in range(600) : sha512(tostring(i))]) }
  }
  expect_failures = [output.user_data]
}

run "a_drain_longer_than_any_hook_is_refused" {
  command = plan
  variables {
    drain_seconds = 7200
  }
  expect_failures = [var.drain_seconds]
}
