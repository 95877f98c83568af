mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
}

variables {
  name  = "ci"
  zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
}

run "private_by_default" {
  command = apply
  assert {
    condition     = [for zone in var.zones : aws_subnet.private[zone].cidr_block] == ["10.64.0.0/24", "10.64.1.0/24", "10.64.2.0/24"]
    error_message = "subnets"
  }
  assert {
    condition     = length(aws_nat_gateway.this) == 0 && length(aws_internet_gateway.this) == 0
    error_message = "there is a way to the internet"
  }
  assert {
    condition     = toset(keys(aws_vpc_endpoint.interface)) == toset(["ec2", "autoscaling", "ssm", "secretsmanager"])
    error_message = "machines could not boot without these endpoints"
  }
  assert {
    condition     = aws_vpc_endpoint.s3.service_name == "com.amazonaws.eu-central-1.s3" && aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway"
    error_message = "S3 would be paid for by the gigabyte"
  }
}

run "with_nat" {
  command = apply
  variables {
    nat = true
  }
  assert {
    condition     = length(aws_vpc_endpoint.interface) == 0 && aws_subnet.nat[0].cidr_block == "10.64.255.0/24"
    error_message = "endpoints and NAT together cost twice"
  }
}

run "a_zone_twice_is_refused" {
  command = plan
  variables {
    zones = ["eu-central-1a", "eu-central-1a"]
  }
  expect_failures = [var.zones]
}

run "a_network_that_is_too_small_is_refused" {
  command = plan
  variables {
    cidr = "10.0.0.0/24"
  }
  expect_failures = [var.cidr]
}
