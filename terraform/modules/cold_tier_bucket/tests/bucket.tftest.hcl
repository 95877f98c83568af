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
}

variables {
  bucket       = "example-cache"
  writer_roles = ["ci-node-*"]
}

run "private_encrypted_and_tidy" {
  command = apply
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this.block_public_acls, aws_s3_bucket_public_access_block.this.block_public_policy,
      aws_s3_bucket_public_access_block.this.ignore_public_acls, aws_s3_bucket_public_access_block.this.restrict_public_buckets,
    ])
    error_message = "the bucket could become public"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "encryption"
  }
  assert {
    condition     = [for it in aws_s3_bucket_lifecycle_configuration.this.rule : it.id] == ["aborted-uploads"]
    error_message = "lifecycle rules"
  }
  # Versions would keep what Fonn deletes, and the budget would not hold.
  assert {
    condition     = one(aws_s3_bucket_versioning.this.versioning_configuration).status == "Disabled"
    error_message = "versioning"
  }
  assert {
    condition     = output.url == "s3://example-cache/fonn"
    error_message = output.url
  }
}

run "only_the_nodes_write" {
  command = apply
  assert {
    condition     = one([for it in jsondecode(aws_s3_bucket_policy.this.policy).Statement : it if it.Sid == "OnlyWritersChangeSegments"]).Condition.ArnNotLike["aws:PrincipalArn"] == ["arn:aws:iam::123456789012:role/ci-node-*"]
    error_message = aws_s3_bucket_policy.this.policy
  }
  assert {
    condition     = one([for it in jsondecode(aws_s3_bucket_policy.this.policy).Statement : it if it.Sid == "OnlyWritersChangeSegments"]).Resource == ["arn:aws:s3:::example-cache/fonn/*"]
    error_message = aws_s3_bucket_policy.this.policy
  }
}

run "a_bucket_without_writers_is_refused" {
  command = plan
  variables {
    writer_roles = []
  }
  expect_failures = [var.writer_roles]
}

run "replicated" {
  command = apply
  variables {
    replicated    = true
    backstop_days = 90
  }
  assert {
    condition     = one([for it in jsondecode(aws_s3_bucket_policy.this.policy).Statement : it if it.Sid == "OnlyWritersChangeSegments"]).Condition.ArnNotLike["aws:PrincipalArn"] == ["arn:aws:iam::123456789012:role/ci-node-*", "arn:aws:iam::123456789012:role/fonn-replication-*"]
    error_message = "replicas could not be written"
  }
  assert {
    condition     = [for it in aws_s3_bucket_lifecycle_configuration.this.rule : it.id] == ["aborted-uploads", "backstop", "deleted-segments"]
    error_message = "lifecycle rules"
  }
  assert {
    condition     = one(aws_s3_bucket_versioning.this.versioning_configuration).status == "Enabled"
    error_message = "S3 replicates versioned buckets only"
  }
}

run "a_backstop_that_bites_is_refused" {
  command = plan
  variables {
    backstop_days = 7
  }
  expect_failures = [var.backstop_days]
}

run "a_key_and_replication_are_refused" {
  command = plan
  variables {
    kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/1"
    replicated  = true
  }
  expect_failures = [var.kms_key_arn]
}
