mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_vpc" {
    defaults = { cidr_block = "10.64.0.0/16" }
  }
  mock_resource "aws_lb" {
    defaults = { dns_name = "ci-router-1.elb.eu-central-1.amazonaws.com" }
  }
}

variables {
  name         = "ci"
  vpc_id       = "vpc-1"
  subnet_ids   = ["subnet-a", "subnet-b", "subnet-c"]
  client_cidrs = ["10.64.0.0/16"]
  cold_tier    = { bucket = "example-cache", prefix = "fonn" }
  release      = { url = "s3://releases/fonn-0.1.0.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  secrets = {
    users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"
    tls   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf"
  }
}

run "three_nodes_and_two_routers" {
  command = apply
  assert {
    condition     = aws_autoscaling_group.this["node"].desired_capacity == 3 && aws_autoscaling_group.this["router"].desired_capacity == 2
    error_message = "sizes of the groups"
  }
  # In a replacement there are never fewer machines than wanted, and one more at most.
  assert {
    condition = alltrue([for group in values(aws_autoscaling_group.this) : alltrue([
      one(one(group.instance_refresh).preferences).min_healthy_percentage == 100,
      floor(group.desired_capacity * one(one(group.instance_refresh).preferences).max_healthy_percentage / 100) == group.max_size,
    ])])
    error_message = "a replacement takes too many machines at once"
  }
  assert {
    condition     = alltrue([for group in values(aws_autoscaling_group.this) : one(group.initial_lifecycle_hook).lifecycle_transition == "autoscaling:EC2_INSTANCE_TERMINATING"])
    error_message = "nobody waits for the drain"
  }
  assert {
    condition     = one([for hook in aws_autoscaling_group.this["node"].initial_lifecycle_hook : hook.heartbeat_timeout]) > var.drain_seconds
    error_message = "the hook is shorter than the drain"
  }
  assert {
    condition     = aws_lb.this.internal && aws_lb.this.load_balancer_type == "network"
    error_message = "the load balancer is reachable from outside"
  }
  assert {
    condition     = alltrue([for template in values(aws_launch_template.this) : one(template.metadata_options).http_tokens == "required"])
    error_message = "metadata without a session"
  }
  assert {
    condition     = alltrue([for template in values(aws_launch_template.this) : one(template.metadata_options).http_put_response_hop_limit == 1])
    error_message = "containers on the machine have its rights"
  }
  assert {
    condition     = output.sccache_environment.SCCACHE_REDIS_ENDPOINT == "rediss://ci-router-1.elb.eu-central-1.amazonaws.com:11211"
    error_message = output.sccache_environment.SCCACHE_REDIS_ENDPOINT
  }
}

run "only_members_and_routers_reach_the_nodes" {
  command = apply
  assert {
    condition     = alltrue([for key, rule in aws_vpc_security_group_ingress_rule.external : rule.security_group_id == aws_security_group.this["router"].id])
    error_message = "something from outside reaches the nodes"
  }
  assert {
    condition = toset([for rule in values(aws_vpc_security_group_ingress_rule.internal) : rule.from_port
    if rule.security_group_id == aws_security_group.this["node"].id]) == toset([11211, 11280, 11290])
    error_message = "ports of the nodes"
  }
}

run "a_name_and_another_region" {
  command = apply
  variables {
    dns         = { zone_id = "Z1", zone_name = "cache.example.com" }
    admin_cidrs = ["10.9.0.0/24"]
    region_name = "eu"
    cold_tier   = { bucket = "example-cache", prefix = "fonn", region = "us-east-1", budget = "500g" }
  }
  assert {
    condition     = output.sccache_environment.SCCACHE_REDIS_ENDPOINT == "rediss://ci.cache.example.com:11211" && output.dashboard == "https://ci.cache.example.com:11281/"
    error_message = output.dashboard
  }
  assert {
    condition     = module.boot["node"].base_toml == "admin_listen = \"0.0.0.0:11280\"\ncluster_listen = \"0.0.0.0:11290\"\ncold_budget = \"500g\"\ncold_tier = \"s3://example-cache/fonn\"\ndisk_budget = \"379371m\"\nlisten = [\"0.0.0.0:11211\"]\nlog_format = \"json\"\nram_budget = \"70%\"\nregion = \"eu\"\ns3_region = \"us-east-1\"\ntls_cert = \"/etc/fonn/cert.pem\"\ntls_client_ca = \"/etc/fonn/ca.pem\"\ntls_key = \"/etc/fonn/key.pem\"\nusers_file = \"/etc/fonn/users.toml\"\n"
    error_message = module.boot["node"].base_toml
  }
  assert {
    condition     = one(aws_lb_target_group.this["cache"].health_check).protocol == "HTTPS"
    error_message = "health checks do not speak TLS"
  }
}

run "routers_are_found_by_redis_cluster_clients" {
  command = apply
  # The boot script puts the machine's private name before it.
  assert {
    condition     = strcontains("\n${module.boot["router"].boot_env}", "\nCLIENT_PORT='11211'\n") && !strcontains(module.boot["router"].base_toml, "advertise")
    error_message = module.boot["router"].boot_env
  }
  # Clients' addresses reach the routers themselves.
  assert {
    condition     = aws_vpc_security_group_ingress_rule.external["client-10.64.0.0/16"].from_port == 11211
    error_message = "clients reach the load balancer alone"
  }
}

run "routers_are_found_behind_the_load_balancer_if_wanted" {
  command = apply
  variables {
    router_settings = { advertise = "ci.cache.example.com:11211" }
  }
  assert {
    condition     = strcontains(module.boot["router"].base_toml, "advertise = \"ci.cache.example.com:11211\"\n")
    error_message = module.boot["router"].base_toml
  }
}

run "a_single_node" {
  command = apply
  variables {
    nodes   = 1
    routers = 1
  }
  assert {
    condition     = one(one(aws_autoscaling_group.this["node"].instance_refresh).preferences).max_healthy_percentage == 200
    error_message = "the new node could not start before the old one goes"
  }
}

run "an_image_of_ones_own" {
  command = apply
  variables {
    image_id = "ami-0123456789abcdef0"
  }
  assert {
    condition     = alltrue([for template in values(aws_launch_template.this) : template.image_id == "ami-0123456789abcdef0"])
    error_message = "the image is not the one that was asked for"
  }
  assert {
    condition     = length(data.aws_ssm_parameter.image) == 0
    error_message = "the newest image is looked up all the same"
  }
}

run "two_nodes_are_refused" {
  command = plan
  variables {
    nodes = 2
  }
  expect_failures = [var.nodes]
}

run "without_users_it_has_to_be_said" {
  command = plan
  variables {
    secrets = {}
  }
  expect_failures = [var.allow_anonymous]
}

run "the_internet_is_no_client" {
  command = plan
  variables {
    client_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "one_archive_has_one_architecture" {
  command = plan
  variables {
    node_type = "i4g.large"
  }
  expect_failures = [var.router_type]
}

run "a_name_that_is_too_long_for_load_balancers_is_refused" {
  command = plan
  variables {
    name = "the-cache-of-all-our-builds"
  }
  expect_failures = [var.name]
}

run "a_network_is_an_id" {
  command = plan
  variables {
    vpc_id = "builds"
  }
  expect_failures = [var.vpc_id]
}

run "more_copies_than_nodes_are_refused" {
  command = plan
  variables {
    replicas = 3
    nodes    = 1
  }
  expect_failures = [var.replicas]
}

run "an_image_is_an_id" {
  command = plan
  variables {
    image_id = "al2023"
  }
  expect_failures = [var.image_id]
}

run "a_region_that_the_node_would_refuse_is_refused" {
  command = plan
  variables {
    region_name = "EU/Central"
  }
  expect_failures = [var.region_name]
}

run "a_release_has_a_checksum" {
  command = plan
  variables {
    release = { url = "s3://releases/fonn.tar.gz", sha256 = "latest" }
  }
  expect_failures = [var.release]
}

run "a_release_over_plain_http_is_refused" {
  command = plan
  variables {
    release = { url = "http://releases/fonn.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
  expect_failures = [var.release]
}

run "a_secret_is_an_arn" {
  command = plan
  variables {
    secrets = { users = "fonn/ci/users", tls = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf" }
  }
  expect_failures = [var.secrets]
}

run "nobody_as_client_is_refused" {
  command = plan
  variables {
    client_cidrs = []
  }
  expect_failures = [var.client_cidrs]
}

run "a_zone_is_an_id_and_a_name" {
  command = plan
  variables {
    dns = { zone_id = "cache.example.com", zone_name = "cache.example.com" }
  }
  expect_failures = [var.dns]
}

run "a_zone_has_no_dot_at_its_end" {
  command = plan
  variables {
    dns = { zone_id = "Z1", zone_name = "cache.example.com." }
  }
  expect_failures = [var.dns]
}

run "what_a_machine_sets_itself_is_not_set_twice" {
  command = plan
  variables {
    node_settings = { node_id = "a" }
  }
  expect_failures = [var.node_settings]
}

run "ports_are_those_of_the_security_groups" {
  command = plan
  variables {
    node_settings = { listen = ["0.0.0.0:6379"] }
  }
  expect_failures = [var.node_settings]
}

run "a_router_finds_its_members_itself" {
  command = plan
  variables {
    router_settings = { cluster = ["10.0.0.1:11290"] }
  }
  expect_failures = [var.router_settings]
}

run "a_drain_longer_than_any_hook_is_refused" {
  command = plan
  variables {
    drain_seconds = 7200
  }
  expect_failures = [var.drain_seconds]
}

run "a_warm_up_is_no_day" {
  command = plan
  variables {
    warmup_seconds = 86400
  }
  expect_failures = [var.warmup_seconds]
}

run "other_settings_of_ones_own" {
  command = apply
  variables {
    node_settings   = { ram_budget = "50%", threads = 2 }
    router_settings = { timeout = "2s" }
    drain_seconds   = 7020
  }
  assert {
    condition     = strcontains(module.boot["node"].base_toml, "ram_budget = \"50%\"\n") && strcontains(module.boot["router"].base_toml, "timeout = \"2s\"\n")
    error_message = module.boot["node"].base_toml
  }
  # AWS lets a hook wait for two hours.
  assert {
    condition     = alltrue([for hook in aws_autoscaling_group.this["node"].initial_lifecycle_hook : hook.heartbeat_timeout <= 7200])
    error_message = "no hook waits that long"
  }
}

run "without_certificates_the_dashboard_answers_by_the_load_balancers_name" {
  command = apply
  variables {
    secrets         = {}
    allow_anonymous = true
  }
  assert {
    condition     = strcontains(module.boot["router"].base_toml, "admin_host = [\"ci-router-1.elb.eu-central-1.amazonaws.com\"]\n")
    error_message = module.boot["router"].base_toml
  }
}
