mock_provider "aws" {}

variables {
  name          = "ci"
  groups        = { node = "ci-node", router = "ci-router" }
  load_balancer = "net/ci-router/1"
  target_group  = "targetgroup/ci-cache/1"
  topic_arn     = "arn:aws:sns:eu-central-1:123456789012:ci-fonn"
}

run "an_alarm_for_routers_and_each_group" {
  command = apply
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

run "a_name_is_one" {
  command = plan
  variables {
    name = "My Cluster"
  }
  expect_failures = [var.name]
}

run "no_group_raises_no_alarm" {
  command = plan
  variables {
    groups = {}
  }
  expect_failures = [var.groups]
}

run "one_group_twice_is_one_alarm_too_few" {
  command = plan
  variables {
    groups = { node = "ci-node", router = "ci-node" }
  }
  expect_failures = [var.groups]
}

run "the_whole_arn_of_a_load_balancer_never_has_data" {
  command = plan
  variables {
    load_balancer = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/ci-router/1"
  }
  expect_failures = [var.load_balancer]
}

run "an_application_load_balancer_is_another_thing" {
  command = plan
  variables {
    load_balancer = "app/ci-router/1"
  }
  expect_failures = [var.load_balancer]
}

run "a_target_group_is_no_load_balancer" {
  command = plan
  variables {
    target_group = "net/ci-router/1"
  }
  expect_failures = [var.target_group]
}

run "a_topic_is_an_arn" {
  command = plan
  variables {
    topic_arn = "ci-fonn"
  }
  expect_failures = [var.topic_arn]
}
