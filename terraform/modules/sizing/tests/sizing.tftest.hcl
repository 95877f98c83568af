variables {
  instance_type = "i4i.large"
  nodes         = 3
}

run "three_of_the_smallest" {
  command = plan

  assert {
    condition     = output.disk_budget == "379371m" && output.ram_budget == "70%" && output.architecture == "x86_64"
    error_message = "budgets of i4i.large: ${output.disk_budget}, ${output.ram_budget}, ${output.architecture}"
  }
  # 379,371 MiB of 468 GB, and 10 % more, still leave room for the file system.
  assert {
    condition     = tonumber(trimsuffix(output.disk_budget, "m")) * 1.1 * 1048576 < 0.95 * 468 * pow(10, 9)
    error_message = "the disk budget does not leave room"
  }
  assert {
    condition     = output.dollars_a_month == 376.68
    error_message = "3 × 0.172 × 730 is not ${output.dollars_a_month}"
  }
  assert {
    condition     = output.entries > 5800000 && output.entries < 5900000
    error_message = "entries: ${output.entries}"
  }
}

run "two_copies_halve_the_entries" {
  command = plan
  variables {
    replicas = 2
  }
  assert {
    condition     = output.entries > 2900000 && output.entries < 2950000
    error_message = "entries: ${output.entries}"
  }
}

run "graviton_wants_other_programs" {
  command = plan
  variables {
    instance_type = "i4g.xlarge"
  }
  assert {
    condition     = output.architecture == "arm64"
    error_message = output.architecture
  }
}

run "a_machine_without_a_local_disk_is_refused" {
  command = plan
  variables {
    instance_type = "m7i.large"
  }
  expect_failures = [var.instance_type]
}

run "half_a_node_is_refused" {
  command = plan
  variables {
    nodes = 2.5
  }
  expect_failures = [var.nodes]
}

run "more_copies_than_nodes_are_refused" {
  command = plan
  variables {
    nodes    = 1
    replicas = 2
  }
  expect_failures = [var.replicas]
}

run "entries_of_no_size_are_refused" {
  command = plan
  variables {
    entry_kib = 0
  }
  expect_failures = [var.entry_kib]
}
