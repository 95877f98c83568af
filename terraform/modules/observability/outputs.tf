output "machines" {
  description = "What machines need to send metrics; goes into the cluster's variable metrics."
  value = {
    workspace_arn = aws_prometheus_workspace.this.arn
    packages      = ["amazon-cloudwatch-agent"]
    files = {
      for role, scrape in local.scrape : role => {
        "${local.agent}/etc/fonn.yaml" = scrape
        "${local.agent}/etc/fonn.json" = local.agent_config
      }
    }
    commands = [
      # On Nitro machines this is the instance's id.
      ["sh", "-c", "sed -i \"s/INSTANCE/$(cat /sys/devices/virtual/dmi/id/board_asset_tag)/\" ${local.agent}/etc/fonn.yaml"],
      ["${local.agent}/bin/amazon-cloudwatch-agent-ctl", "-a", "fetch-config", "-m", "ec2", "-s", "-c", "file:${local.agent}/etc/fonn.json"],
    ]
  }
}

output "topic_arn" {
  description = "Topic of alerts and alarms."
  value       = aws_sns_topic.this.arn
}

output "query_url" {
  description = "Data source for Grafana (with SigV4)."
  value       = aws_prometheus_workspace.this.prometheus_endpoint
}
