# Core rules; the AWS rule set is not installed (see README.md).
plugin "terraform" {
  enabled = true
  preset  = "all"
}
