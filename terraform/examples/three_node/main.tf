# Three nodes and two routers over three zones, in a network of their own, with TLS, metrics and alarms.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "current" {}

data "aws_availability_zones" "this" {
  state = "available"
}

locals {
  name = "ci"
}

module "network" {
  source = "../../modules/network"

  name  = local.name
  zones = slice(data.aws_availability_zones.this.names, 0, 3)
  # The agent that sends metrics is a package of the distribution.
  nat = true
}

module "bucket" {
  source = "../../modules/cold_tier_bucket"

  bucket        = var.bucket
  writer_roles  = ["ci-node-*"]
  backstop_days = 90
}

module "observability" {
  source = "../../modules/observability"

  name       = local.name
  account_id = data.aws_caller_identity.current.account_id
  emails     = var.emails
  tls        = true
}

module "cluster" {
  source = "../../modules/cluster"

  name         = local.name
  vpc_id       = module.network.vpc_id
  subnet_ids   = module.network.subnet_ids
  nodes        = 3
  replicas     = 2
  routers      = 2
  client_cidrs = concat([module.network.cidr], var.client_cidrs)
  admin_cidrs  = [module.network.cidr]
  cold_tier    = { bucket = module.bucket.bucket, prefix = module.bucket.prefix, budget = "500g" }
  release      = var.release
  secrets      = var.secrets
  dns          = var.dns
  metrics      = module.observability.machines
}

module "alarms" {
  source = "../../modules/alarms"

  name          = local.name
  groups        = module.cluster.groups
  load_balancer = module.cluster.load_balancer_arn_suffix
  target_group  = module.cluster.target_group_arn_suffix
  topic_arn     = module.observability.topic_arn
}
