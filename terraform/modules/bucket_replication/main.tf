# Replication of segments from one bucket to others, one direction. For both directions use it twice, when both buckets
# are there. Names are used once and objects never change, so that replication in both directions cannot conflict.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

module "access" {
  source = "../access"

  partition       = data.aws_partition.current.partition
  region          = data.aws_region.current.region
  account_id      = data.aws_caller_identity.current.account_id
  bucket          = var.source_bucket
  prefix          = var.prefix
  replica_buckets = var.destination_buckets
  # Of the machines' documents none is used here.
  node_group   = "unused-node"
  router_group = "unused-router"
  claim        = "/fonn/unused"
}

resource "aws_iam_role" "this" {
  name_prefix        = "fonn-replication-"
  assume_role_policy = module.access.replication_trust
  tags               = var.tags
}

resource "aws_iam_role_policy" "this" {
  name   = "replication"
  role   = aws_iam_role.this.id
  policy = module.access.replication
}

resource "aws_s3_bucket_replication_configuration" "this" {
  bucket = var.source_bucket
  role   = aws_iam_role.this.arn

  dynamic "rule" {
    for_each = { for index, bucket in var.destination_buckets : bucket => index }

    content {
      id       = rule.key
      priority = rule.value
      status   = "Enabled"

      filter {
        prefix = "${var.prefix}/"
      }

      # What is collected in one region is gone in the others, too.
      delete_marker_replication {
        status = "Enabled"
      }

      destination {
        bucket = "arn:${data.aws_partition.current.partition}:s3:::${rule.key}"
      }
    }
  }

  depends_on = [aws_iam_role_policy.this]
}
