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
  mock_data "aws_subnet" {
    defaults = { vpc_id = "vpc-1" }
  }
  mock_data "aws_vpc" {
    defaults = { cidr_block = "10.64.0.0/16" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-central-1a", "eu-central-1b", "eu-central-1c", "eu-central-1d"] }
  }
  mock_resource "aws_lb" {
    defaults = { dns_name = "ci-router-1.elb.eu-central-1.amazonaws.com" }
  }
}

variables {
  release          = { url = "s3://releases/fonn.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  client_cidrs     = ["10.0.0.0/8"]
  subnet_id        = "subnet-a"
  bucket           = "example-cache"
  users_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"
  tls_secret_arn   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf"
}

run "as_it_is" {
  command = apply
  assert {
    condition     = strcontains(output.sccache, "export SCCACHE_REDIS_ENDPOINT=rediss://ci-router-1.elb.eu-central-1.amazonaws.com:11211")
    error_message = output.sccache
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

run "nobody_as_client_is_refused" {
  command = plan
  variables {
    client_cidrs = []
  }
  expect_failures = [var.client_cidrs]
}

run "a_subnet_is_an_id" {
  command = plan
  variables {
    subnet_id = "private-a"
  }
  expect_failures = [var.subnet_id]
}

run "users_are_a_secret" {
  command = plan
  variables {
    users_secret_arn = "users.toml"
  }
  expect_failures = [var.users_secret_arn]
}

run "certificates_are_a_secret" {
  command = plan
  variables {
    tls_secret_arn = "arn:aws:acm:eu-central-1:123456789012:certificate/1"
  }
  expect_failures = [var.tls_secret_arn]
}
