output "machine_trust" {
  description = "Lets machines take a role."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.${var.partition == "aws-cn" ? "amazonaws.com.cn" : "amazonaws.com"}" }
    }]
  })
}

output "node" {
  description = "What nodes may do."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = concat(local.bucket_statements, local.key_statements, local.claim_statements,
    local.machine_statements[var.node_group], local.common)
  })
}

output "router" {
  description = "What routers may do: nothing with the bucket."
  value = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.machine_statements[var.router_group], local.common)
  })
}

output "bucket" {
  description = "Policy of the bucket: nothing without TLS, and below the prefix only the writers' roles write and delete."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = concat([{
      Sid       = "OnlyTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }], local.writer_statements)
  })
}

output "replication_trust" {
  description = "Lets S3 take the replication role, for this account only."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "s3.amazonaws.com" }
      Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
    }]
  })
}

output "replication" {
  description = "What the replication role may do."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "ReadConfiguration"
        Effect   = "Allow"
        Action   = ["s3:GetReplicationConfiguration", "s3:ListBucket"]
        Resource = [local.bucket_arn]
      },
      {
        Sid      = "ReadVersions"
        Effect   = "Allow"
        Action   = ["s3:GetObjectVersionForReplication", "s3:GetObjectVersionAcl", "s3:GetObjectVersionTagging"]
        Resource = [local.objects]
      },
      {
        Sid      = "WriteReplicas"
        Effect   = "Allow"
        Action   = ["s3:ReplicateObject", "s3:ReplicateDelete", "s3:ReplicateTags"]
        Resource = [for bucket in var.replica_buckets : "arn:${var.partition}:s3:::${bucket}/${var.prefix}/*"]
      },
    ]
  })
}
