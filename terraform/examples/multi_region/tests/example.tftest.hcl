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
  mock_resource "aws_lb" {
    defaults = { dns_name = "ci-router-1.elb.eu-central-1.amazonaws.com" }
  }
}

mock_provider "aws" {
  alias = "second"

  mock_data "aws_region" {
    defaults = { region = "us-east-1" }
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
  mock_resource "aws_lb" {
    defaults = { dns_name = "ci-router-1.elb.us-east-1.amazonaws.com" }
  }
}

variables {
  release = { url = "s3://releases/fonn.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  bucket  = "example-cache"
  networks = [
    {
      vpc_id           = "vpc-eu"
      subnet_ids       = ["subnet-eu-a", "subnet-eu-b", "subnet-eu-c"]
      client_cidrs     = ["10.1.0.0/16"]
      users_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"
      tls_secret_arn   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-tls-AbCdEf"
    },
    {
      vpc_id           = "vpc-us"
      subnet_ids       = ["subnet-us-a", "subnet-us-b", "subnet-us-c"]
      client_cidrs     = ["10.2.0.0/16"]
      users_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:ci-users-AbCdEf"
      tls_secret_arn   = "arn:aws:secretsmanager:us-east-1:123456789012:secret:ci-tls-AbCdEf"
    },
  ]
}

run "one_bucket" {
  command = apply
  assert {
    condition     = strcontains(output.sccache["us-east-1"], ".us-east-1.") && strcontains(output.sccache["eu-central-1"], ".eu-central-1.")
    error_message = "each region has its own endpoint"
  }
  assert {
    condition     = length(module.second_bucket) == 0 && length(module.there) == 0
    error_message = "one bucket was asked for"
  }
}

run "replicated_in_both_directions" {
  command = apply
  variables {
    shared = false
  }
  assert {
    condition     = length(module.there) == 1 && length(module.back) == 1
    error_message = "directions"
  }
}

run "one_region_twice_is_refused" {
  command = plan
  variables {
    regions = ["eu-central-1", "eu-central-1"]
  }
  expect_failures = [var.regions]
}
