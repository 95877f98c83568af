# IAM documents as JSON: who may do what, and nothing more. No provider is needed.

locals {
  bucket_arn = "arn:${var.partition}:s3:::${var.bucket}"
  objects    = "${local.bucket_arn}/${var.prefix}/*"

  # As docs/cold-tier.md says. ListBucket is what makes an absent object a 404 instead of a 403.
  bucket_statements = [
    {
      Sid      = "Segments"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
      Resource = [local.objects]
    },
    {
      Sid       = "FindSegments"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = [local.bucket_arn]
      Condition = { StringLike = { "s3:prefix" = [var.prefix, "${var.prefix}/*"] } }
    },
  ]
  # A segment is code that builders execute. A Deny wins over every other right in the account.
  writer_statements = length(var.writer_roles) == 0 ? [] : [{
    Sid       = "OnlyWritersChangeSegments"
    Effect    = "Deny"
    Principal = "*"
    Action    = ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:ReplicateObject", "s3:ReplicateDelete"]
    Resource  = [local.objects]
    # Of a session the key is the ARN of its role.
    Condition = { ArnNotLike = { "aws:PrincipalArn" = [for role in var.writer_roles : "arn:${var.partition}:iam::${var.account_id}:role/${role}"] } }
  }]
  key_statements = var.kms_key_arn == null ? [] : [{
    Sid      = "Key"
    Effect   = "Allow"
    Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
    Resource = [var.kms_key_arn]
  }]
  secret_statements = length(var.secret_arns) == 0 ? [] : [{
    Sid      = "Secrets"
    Effect   = "Allow"
    Action   = ["secretsmanager:GetSecretValue"]
    Resource = var.secret_arns
  }]
  release_statements = var.release_object_arn == null ? [] : [{
    Sid      = "Release"
    Effect   = "Allow"
    Action   = ["s3:GetObject"]
    Resource = [var.release_object_arn]
  }]

  scope = "${var.partition}:%s:${var.region}:${var.account_id}"
  # Finding the other members has no resource to name; ending the own replacement has.
  machine_statements = {
    for group in [var.node_group, var.router_group] : group => [
      {
        Sid      = "FindMembers"
        Effect   = "Allow"
        Action   = ["ec2:DescribeInstances"]
        Resource = ["*"]
      },
      {
        Sid      = "EndOwnReplacement"
        Effect   = "Allow"
        Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
        Resource = ["arn:${format(local.scope, "autoscaling")}:autoScalingGroup:*:autoScalingGroupName/${group}"]
      },
    ]
  }
  claim_statements = [{
    Sid      = "ClaimBootstrap"
    Effect   = "Allow"
    Action   = ["ssm:PutParameter", "ssm:GetParameter"]
    Resource = ["arn:${format(local.scope, "ssm")}:parameter${var.claim}/*"]
  }]
  metrics_statements = var.metrics_workspace_arn == null ? [] : [{
    Sid      = "Metrics"
    Effect   = "Allow"
    Action   = ["aps:RemoteWrite"]
    Resource = [var.metrics_workspace_arn]
  }]

  common = concat(local.secret_statements, local.release_statements, local.metrics_statements)
}
