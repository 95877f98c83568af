# Alarms for what Prometheus cannot see: a cluster that sends no metrics at all.

resource "aws_cloudwatch_metric_alarm" "no_router" {
  alarm_name          = "${var.name}-no-healthy-router"
  alarm_description   = "No router of ${var.name} is healthy: builds have no cache."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = var.load_balancer, TargetGroup = var.target_group }
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = [var.topic_arn]
  ok_actions          = [var.topic_arn]
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "machines" {
  for_each = var.groups

  alarm_name          = "${each.value}-machines"
  alarm_description   = "${each.value} has fewer machines in service than it wants."
  comparison_operator = "LessThanThreshold"
  threshold           = 0
  evaluation_periods  = 15
  treat_missing_data  = "breaching"
  alarm_actions       = [var.topic_arn]
  ok_actions          = [var.topic_arn]
  tags                = var.tags

  metric_query {
    id          = "missing"
    expression  = "inservice - desired"
    label       = "in service less wanted"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = { inservice = "GroupInServiceInstances", desired = "GroupDesiredCapacity" }

    content {
      id = metric_query.key

      metric {
        namespace   = "AWS/AutoScaling"
        metric_name = metric_query.value
        dimensions  = { AutoScalingGroupName = each.value }
        period      = 60
        stat        = "Minimum"
      }
    }
  }
}
