mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
}

variables {
  source_bucket       = "example-cache"
  destination_buckets = ["example-cache-us", "example-cache-ap"]
}

run "every_destination_gets_the_prefix" {
  command = apply
  assert {
    condition = toset(flatten([for it in aws_s3_bucket_replication_configuration.this.rule : it.destination[*].bucket])) == toset([
    "arn:aws:s3:::example-cache-us", "arn:aws:s3:::example-cache-ap"])
    error_message = "destinations"
  }
  assert {
    condition     = alltrue([for it in aws_s3_bucket_replication_configuration.this.rule : one(it.filter).prefix == "fonn/"])
    error_message = "more than the prefix is replicated"
  }
  assert {
    condition     = length(distinct([for it in aws_s3_bucket_replication_configuration.this.rule : it.priority])) == 2
    error_message = "S3 wants different priorities"
  }
}

run "replication_to_itself_is_refused" {
  command = plan
  variables {
    destination_buckets = ["example-cache"]
  }
  expect_failures = [var.destination_buckets]
}
