mock_provider "aws" {}

run "an_alarm_for_routers_and_each_group" {
  command = apply
  variables {
    name          = "ci"
    groups        = { node = "ci-node", router = "ci-router" }
    load_balancer = "net/ci-router/1"
    target_group  = "targetgroup/ci-cache/1"
    topic_arn     = "arn:aws:sns:eu-central-1:123456789012:ci-fonn"
  }
  assert {
    condition     = toset(output.names) == toset(["ci-no-healthy-router", "ci-node-machines", "ci-router-machines"])
    error_message = "alarms: ${join(", ", output.names)}"
  }
  # Silence is the worst sign.
  assert {
    condition     = aws_cloudwatch_metric_alarm.no_router.treat_missing_data == "breaching"
    error_message = "a cluster without any metric raises no alarm"
  }
}
