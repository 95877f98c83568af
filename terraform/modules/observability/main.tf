# Where metrics go and who hears of trouble: a workspace of Amazon Managed Prometheus with the alerts of
# deploy/prometheus, a topic, and alarms for what Prometheus cannot see. It is made before the cluster, which takes its
# output `machines`; alarms on the cluster itself are in ../alarms.

data "aws_region" "current" {}

module "naming" {
  source = "../naming"

  name = var.name
  tags = var.tags
}

locals {
  region = data.aws_region.current.region
  rules  = "${path.module}/../../../deploy/prometheus/rules"
  agent  = "/opt/aws/amazon-cloudwatch-agent"
  ports  = { node = module.naming.ports.node_admin, router = module.naming.ports.router_admin }

  # An agent on each machine asks its own admin port only.
  scrape = {
    for role, port in local.ports : role => yamlencode({
      global = { scrape_interval = "${var.scrape_seconds}s" }
      scrape_configs = [merge({
        job_name       = "fonn-${role}"
        static_configs = [{ targets = ["127.0.0.1:${port}"], labels = { cluster = var.name, instance = "INSTANCE" } }]
        }, {
        # Its own machine, under an address that no certificate names.
        for key, value in { scheme = "https", tls_config = { insecure_skip_verify = true } } : key => value if var.tls
      })]
    })
  }
  agent_config = jsonencode({
    agent = { region = local.region }
    metrics = {
      metrics_destinations = { amp = { workspace_id = aws_prometheus_workspace.this.id } }
      metrics_collected    = { prometheus = { prometheus_config_path = "${local.agent}/etc/fonn.yaml" } }
    }
  })
}

resource "aws_prometheus_workspace" "this" {
  alias = var.name
  tags  = module.naming.tags
}

resource "aws_prometheus_rule_group_namespace" "this" {
  for_each = fileset(local.rules, "*.yaml")

  name         = "${var.name}-${trimsuffix(each.key, ".yaml")}"
  workspace_id = aws_prometheus_workspace.this.id
  data         = replace(file("${local.rules}/${each.key}"), "runbook_url: docs/", "runbook_url: ${var.runbook_base}docs/")
  tags         = module.naming.tags
}

resource "aws_sns_topic" "this" {
  name = "${var.name}-fonn"
  # AWS' own key: messages hold names of machines, no entries and no secrets.
  kms_master_key_id = var.topic_kms_key
  tags              = module.naming.tags
}

resource "aws_sns_topic_policy" "this" {
  arn = aws_sns_topic.this.arn
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Publish"
      Effect    = "Allow"
      Principal = { Service = ["aps.amazonaws.com", "cloudwatch.amazonaws.com"] }
      Action    = ["sns:Publish", "sns:GetTopicAttributes"]
      Resource  = aws_sns_topic.this.arn
      Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
    }]
  })
}

resource "aws_sns_topic_subscription" "email" {
  for_each = var.emails

  topic_arn = aws_sns_topic.this.arn
  protocol  = "email"
  endpoint  = each.value
}

resource "aws_prometheus_alert_manager_definition" "this" {
  workspace_id = aws_prometheus_workspace.this.id
  definition   = <<-YAML
    alertmanager_config: |
      route:
        receiver: topic
        group_by: [alertname, cluster]
        group_wait: 30s
        group_interval: 5m
        repeat_interval: 12h
      receivers:
        - name: topic
          sns_configs:
            - topic_arn: ${aws_sns_topic.this.arn}
              sigv4:
                region: ${local.region}
              attributes:
                severity: '{{ .CommonLabels.severity }}'
  YAML
}
