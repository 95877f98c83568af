# The two groups: role, launch template, group, and the hook that waits for the drain.

resource "aws_iam_role" "this" {
  for_each = local.roles

  name_prefix        = "${each.value.group}-"
  assume_role_policy = module.access.machine_trust
  tags               = module.naming.tags
}

resource "aws_iam_role_policy" "this" {
  for_each = local.roles

  name   = "fonn"
  role   = aws_iam_role.this[each.key].id
  policy = each.value.policy
}

# A shell without an open port, if wanted.
resource "aws_iam_role_policy_attachment" "session_manager" {
  for_each = var.session_manager ? local.roles : {}

  role       = aws_iam_role.this[each.key].name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "this" {
  for_each = local.roles

  name_prefix = "${each.value.group}-"
  role        = aws_iam_role.this[each.key].name
  tags        = module.naming.tags
}

resource "aws_launch_template" "this" {
  for_each = local.roles

  name                   = each.value.group
  image_id               = coalesce(var.image_id, one(data.aws_ssm_parameter.image[*].insecure_value))
  instance_type          = each.value.type
  user_data              = each.value.user_data
  update_default_version = true
  vpc_security_group_ids = [aws_security_group.this[each.key].id]
  tags                   = module.naming.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.this[each.key].arn
  }

  # Session-oriented metadata only, and not from containers.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = 16
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  monitoring {
    enabled = true
  }

  tag_specifications {
    resource_type = "instance"
    tags          = merge(module.naming.tags, { Name = each.value.group })
  }

  tag_specifications {
    resource_type = "volume"
    tags          = merge(module.naming.tags, { Name = each.value.group })
  }
}

resource "aws_autoscaling_group" "this" {
  for_each = local.roles

  # A fixed name: rights, the claim and the search for members go by it.
  name                = each.value.group
  vpc_zone_identifier = var.subnet_ids
  min_size            = each.value.machines
  # One more while one is replaced: the new one is there before the old one goes.
  max_size                  = each.value.machines + 1
  desired_capacity          = each.value.machines
  health_check_type         = each.key == "router" ? "ELB" : "EC2"
  health_check_grace_period = 300
  default_instance_warmup   = var.warmup_seconds
  target_group_arns         = each.key == "router" ? [for group in aws_lb_target_group.this : group.arn] : []
  termination_policies      = ["OldestLaunchTemplate", "OldestInstance"]
  capacity_rebalance        = false
  # For ../alarms.
  enabled_metrics = ["GroupDesiredCapacity", "GroupInServiceInstances"]

  launch_template {
    id      = aws_launch_template.this[each.key].id
    version = aws_launch_template.this[each.key].latest_version
  }

  # A new launch template replaces machines one after the other: start one, wait, drain one.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 100 + ceil(100 / each.value.machines)
      instance_warmup        = var.warmup_seconds
      auto_rollback          = true
    }
  }

  initial_lifecycle_hook {
    name                 = "drain"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = local.hook_seconds
    default_result       = "CONTINUE"
  }

  dynamic "tag" {
    for_each = merge(module.naming.tags, { Name = each.value.group })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  depends_on = [aws_iam_role_policy.this]
}
