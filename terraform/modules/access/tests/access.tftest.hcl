variables {
  region       = "eu-central-1"
  account_id   = "123456789012"
  bucket       = "example-cache"
  prefix       = "team/ci"
  node_group   = "ci-node"
  router_group = "ci-router"
  claim        = "/fonn/ci/bootstrap"
}

run "nodes_may_touch_their_prefix_only" {
  command = plan
  assert {
    condition = alltrue(flatten([
      for statement in jsondecode(output.node).Statement : [
        for resource in statement.Resource : contains(["arn:aws:s3:::example-cache", "arn:aws:s3:::example-cache/team/ci/*"], resource)
      ] if anytrue([for action in statement.Action : startswith(action, "s3:")])
    ]))
    error_message = "an S3 statement reaches beyond the prefix: ${output.node}"
  }
  assert {
    condition = one([for it in jsondecode(output.node).Statement : it if it.Sid == "FindSegments"]).Condition.StringLike["s3:prefix"] == [
    "team/ci", "team/ci/*"]
    error_message = "the bucket can be listed beyond the prefix"
  }
  assert {
    condition     = alltrue(flatten([for it in jsondecode(output.node).Statement : [for action in it.Action : !strcontains(action, "*")]]))
    error_message = "an action is a wildcard"
  }
  # Describing machines is the one thing that has no resource to name.
  assert {
    condition     = [for it in jsondecode(output.node).Statement : it.Sid if contains(it.Resource, "*")] == ["FindMembers"]
    error_message = "a statement is for every resource"
  }
}

run "routers_may_not_touch_the_bucket" {
  command = plan
  assert {
    condition     = !strcontains(output.router, "s3:") && !strcontains(output.router, "ssm:")
    error_message = output.router
  }
  assert {
    condition     = strcontains(output.router, "autoScalingGroupName/ci-router") && !strcontains(output.router, "ci-node")
    error_message = "a router may end the replacement of a node"
  }
}

run "only_what_is_named_is_allowed" {
  command = plan
  variables {
    kms_key_arn           = "arn:aws:kms:eu-central-1:123456789012:key/1"
    secret_arns           = ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:ci-users-AbCdEf"]
    release_object_arn    = "arn:aws:s3:::releases/fonn.tar.gz"
    metrics_workspace_arn = "arn:aws:aps:eu-central-1:123456789012:workspace/ws-1"
  }
  assert {
    condition = toset([for it in jsondecode(output.node).Statement : it.Sid]) == toset([
    "Segments", "FindSegments", "Key", "ClaimBootstrap", "FindMembers", "EndOwnReplacement", "Secrets", "Release", "Metrics"])
    error_message = output.node
  }
  assert {
    condition     = toset([for it in jsondecode(output.router).Statement : it.Sid]) == toset(["FindMembers", "EndOwnReplacement", "Secrets", "Release", "Metrics"])
    error_message = output.router
  }
}

run "replicas_are_written_below_the_prefix_only" {
  command = plan
  variables {
    replica_buckets = ["example-cache-us"]
  }
  assert {
    condition     = one([for it in jsondecode(output.replication).Statement : it if it.Sid == "WriteReplicas"]).Resource == ["arn:aws:s3:::example-cache-us/team/ci/*"]
    error_message = output.replication
  }
  assert {
    condition     = jsondecode(output.replication_trust).Statement[0].Condition.StringEquals["aws:SourceAccount"] == "123456789012"
    error_message = "another account could use the replication role"
  }
}

run "a_bucket_with_a_wildcard_is_refused" {
  command = plan
  variables {
    bucket = "example-*"
  }
  expect_failures = [var.bucket]
}

run "a_prefix_with_a_wildcard_is_refused" {
  command = plan
  variables {
    prefix = "team/*"
  }
  expect_failures = [var.prefix]
}

run "a_secret_with_a_wildcard_is_refused" {
  command = plan
  variables {
    secret_arns = ["arn:aws:secretsmanager:eu-central-1:123456789012:secret:*"]
  }
  expect_failures = [var.secret_arns]
}

run "an_account_that_is_none_is_refused" {
  command = plan
  variables {
    account_id = "1234"
  }
  expect_failures = [var.account_id]
}

run "only_writers_change_segments" {
  command = plan
  variables {
    writer_roles = ["ci-node-*", "team/seeder"]
  }
  assert {
    condition     = one([for it in jsondecode(output.bucket).Statement : it if it.Sid == "OnlyWritersChangeSegments"]).Effect == "Deny"
    error_message = output.bucket
  }
  assert {
    condition = one([for it in jsondecode(output.bucket).Statement : it if it.Sid == "OnlyWritersChangeSegments"]) == {
      Sid       = "OnlyWritersChangeSegments"
      Effect    = "Deny"
      Principal = "*"
      Action    = ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:ReplicateObject", "s3:ReplicateDelete"]
      Resource  = ["arn:aws:s3:::example-cache/team/ci/*"]
      Condition = { ArnNotLike = { "aws:PrincipalArn" = ["arn:aws:iam::123456789012:role/ci-node-*", "arn:aws:iam::123456789012:role/team/seeder"] } }
    }
    error_message = output.bucket
  }
  assert {
    condition     = length([for it in jsondecode(output.bucket).Statement : it if it.Sid == "OnlyTls"]) == 1
    error_message = output.bucket
  }
}

run "a_role_that_is_a_wildcard_is_refused" {
  command = plan
  variables {
    writer_roles = ["*"]
  }
  expect_failures = [var.writer_roles]
}

run "a_role_with_a_wildcard_inside_is_refused" {
  command = plan
  variables {
    writer_roles = ["ci-*-node"]
  }
  expect_failures = [var.writer_roles]
}
