# The bucket that outlives the nodes.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

module "access" {
  source = "../access"

  partition  = data.aws_partition.current.partition
  region     = data.aws_region.current.region
  account_id = data.aws_caller_identity.current.account_id
  bucket     = var.bucket
  prefix     = var.prefix
  # Replication writes with a role of its own (../bucket_replication).
  writer_roles = concat(var.writer_roles, var.replicated ? ["fonn-replication-*"] : [])
  # Of the machines' documents none is used here.
  node_group   = "unused-node"
  router_group = "unused-router"
  claim        = "/fonn/unused"
}

resource "aws_s3_bucket" "this" {
  bucket        = var.bucket
  force_destroy = var.force_destroy
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    # A bucket key makes one request to KMS of thousands.
    bucket_key_enabled = var.kms_key_arn != null

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = module.access.bucket

  depends_on = [aws_s3_bucket_public_access_block.this]
}

# S3 replicates versioned buckets only. In others versions would keep what Fonn deletes.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = var.replicated ? "Enabled" : "Disabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  # Nodes upload each object in one request. What another program leaves half uploaded is invisible and paid for.
  rule {
    id     = "aborted-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  # Fonn collects its garbage itself; this is for what it cannot find any more.
  dynamic "rule" {
    for_each = var.backstop_days == null ? [] : [var.backstop_days]

    content {
      id     = "backstop"
      status = "Enabled"

      filter {
        prefix = "${var.prefix}/"
      }

      expiration {
        days = rule.value
      }
    }
  }

  # Segments are written once, so an old version is a deleted segment.
  dynamic "rule" {
    for_each = var.replicated ? [1] : []

    content {
      id     = "deleted-segments"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = 1
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_logging" "this" {
  count = var.log_bucket == null ? 0 : 1

  bucket        = aws_s3_bucket.this.id
  target_bucket = var.log_bucket
  target_prefix = "${var.bucket}/"
}
