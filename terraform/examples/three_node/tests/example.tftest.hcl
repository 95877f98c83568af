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
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-central-1a", "eu-central-1b", "eu-central-1c", "eu-central-1d"] }
  }
  mock_resource "aws_vpc" {
    defaults = { id = "vpc-1" }
  }
  mock_resource "aws_lb" {
    defaults = { dns_name = "ci-router-1.elb.eu-central-1.amazonaws.com", arn_suffix = "net/ci-router/1" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn_suffix = "targetgroup/ci-cache/1" }
  }
  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:eu-central-1:123456789012:ci-fonn" }
  }
}

variables {
  release      = { url = "s3://releases/fonn.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  client_cidrs = ["10.0.0.0/8"]
  bucket       = "example-cache"
  emails       = ["ops@example.com"]
  dns          = { zone_id = "Z1", zone_name = "cache.example.com" }
  secrets = {
    users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"
    tls   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf"
    admin = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-admin-AbCdEf"
  }
}

run "as_it_is" {
  command = apply
  assert {
    condition     = strcontains(output.sccache, "export SCCACHE_REDIS_ENDPOINT=rediss://ci.cache.example.com:11211")
    error_message = output.sccache
  }
  assert {
    condition     = output.dashboard == "https://ci.cache.example.com:11281/"
    error_message = output.dashboard
  }
}

run "a_release_has_a_checksum" {
  command = plan
  variables {
    release = { url = "s3://releases/fonn.tar.gz", sha256 = "" }
  }
  expect_failures = [var.release]
}

run "a_region_is_one_of_aws" {
  command = plan
  variables {
    region = "eu-central-1a"
  }
  expect_failures = [var.region]
}

run "a_bucket_is_no_url" {
  command = plan
  variables {
    bucket = "s3://example-cache"
  }
  expect_failures = [var.bucket]
}

run "the_internet_is_no_client" {
  command = plan
  variables {
    client_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.client_cidrs]
}

run "a_secret_is_an_arn" {
  command = plan
  variables {
    secrets = { users = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf", tls = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf", admin = "admin" }
  }
  expect_failures = [var.secrets]
}

run "a_zone_is_an_id_and_a_name" {
  command = plan
  variables {
    dns = { zone_id = "cache.example.com", zone_name = "Z1" }
  }
  expect_failures = [var.dns]
}

run "alerts_that_nobody_gets_are_none" {
  command = plan
  variables {
    emails = []
  }
  expect_failures = [var.emails]
}
