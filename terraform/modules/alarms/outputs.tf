output "names" {
  description = "Names of the alarms."
  value       = concat([aws_cloudwatch_metric_alarm.no_router.alarm_name], [for it in aws_cloudwatch_metric_alarm.machines : it.alarm_name])
}
