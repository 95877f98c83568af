mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_resource "aws_prometheus_workspace" {
    defaults = { id = "ws-1", arn = "arn:aws:aps:eu-central-1:123456789012:workspace/ws-1" }
  }
  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:eu-central-1:123456789012:ci-fonn" }
  }
}

variables {
  name       = "ci"
  account_id = "123456789012"
}

run "alerts_are_those_of_the_repository" {
  command = apply
  variables {
    runbook_base = "https://example.com/fonn/"
  }
  assert {
    condition     = toset(keys(aws_prometheus_rule_group_namespace.this)) == toset(["alerts.yaml", "recording.yaml"])
    error_message = "rule files"
  }
  assert {
    condition     = strcontains(aws_prometheus_rule_group_namespace.this["alerts.yaml"].data, "runbook_url: https://example.com/fonn/docs/operations/runbooks.md#fonnbusy")
    error_message = "links to runbooks"
  }
  assert {
    condition = yamldecode(yamldecode(aws_prometheus_alert_manager_definition.this.definition).alertmanager_config
    ).receivers[0].sns_configs[0].topic_arn == "arn:aws:sns:eu-central-1:123456789012:ci-fonn"
    error_message = "where alerts go"
  }
}

run "machines_ask_themselves_and_name_themselves" {
  command = apply
  assert {
    condition = yamldecode(output.machines.files.router["/opt/aws/amazon-cloudwatch-agent/etc/fonn.yaml"]).scrape_configs[0] == {
      job_name       = "fonn-router"
      static_configs = [{ targets = ["127.0.0.1:11281"], labels = { cluster = "ci", instance = "INSTANCE" } }]
    }
    error_message = output.machines.files.router["/opt/aws/amazon-cloudwatch-agent/etc/fonn.yaml"]
  }
  assert {
    condition     = jsondecode(output.machines.files.node["/opt/aws/amazon-cloudwatch-agent/etc/fonn.json"]).metrics.metrics_destinations.amp.workspace_id == "ws-1"
    error_message = "where metrics go"
  }
}

run "an_address_that_is_none_is_refused" {
  command = plan
  variables {
    emails = ["nobody"]
  }
  expect_failures = [var.emails]
}

run "too_seldom_is_refused" {
  command = plan
  variables {
    scrape_seconds = 300
  }
  expect_failures = [var.scrape_seconds]
}
