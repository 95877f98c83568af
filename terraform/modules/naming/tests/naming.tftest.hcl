variables {
  name = "ci"
  host = "cache.example.com"
}

run "plain" {
  command = plan
  assert {
    condition     = output.sccache_environment.SCCACHE_REDIS_ENDPOINT == "redis://cache.example.com:11211"
    error_message = output.sccache_environment.SCCACHE_REDIS_ENDPOINT
  }
  assert {
    condition     = output.nodes == "ci-node" && output.routers == "ci-router" && output.claim == "/fonn/ci/bootstrap"
    error_message = "names"
  }
  assert {
    condition     = jsonencode(output.tags) == jsonencode({ "fonn:cluster" = "ci" })
    error_message = "tags"
  }
}

run "with_tls" {
  command = plan
  variables {
    tls  = true
    tags = { team = "build" }
  }
  assert {
    condition     = output.sccache_environment.SCCACHE_REDIS_ENDPOINT == "rediss://cache.example.com:11211" && output.dashboard == "https://cache.example.com:11281/"
    error_message = "schemes"
  }
  assert {
    condition     = output.tags["team"] == "build"
    error_message = "own tags are lost"
  }
}

run "the_longest_name_fits_a_load_balancer" {
  command = plan
  variables {
    name = "abcdefghijklmnopqrstuvw"
  }
  assert {
    condition     = length("${output.routers}-x") <= 32
    error_message = "too long for a load balancer"
  }
}

run "longer_is_refused" {
  command = plan
  variables {
    name = "abcdefghijklmnopqrstuvwx"
  }
  expect_failures = [var.name]
}

run "capitals_are_refused" {
  command = plan
  variables {
    name = "CI"
  }
  expect_failures = [var.name]
}

run "own_tags_may_not_take_ours" {
  command = plan
  variables {
    tags = { "fonn:cluster" = "other" }
  }
  expect_failures = [var.tags]
}
