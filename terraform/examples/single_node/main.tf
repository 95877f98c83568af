# One node and one router in an existing network: for one team in one zone. What is lost with the machine is in the bucket.

provider "aws" {
  region = var.region
}

data "aws_subnet" "this" {
  id = var.subnet_id
}

module "bucket" {
  source = "../../modules/cold_tier_bucket"

  bucket        = var.bucket
  writer_roles  = ["ci-node-*"]
  backstop_days = 90
}

module "cluster" {
  source = "../../modules/cluster"

  name         = "ci"
  nodes        = 1
  routers      = 1
  vpc_id       = data.aws_subnet.this.vpc_id
  subnet_ids   = [var.subnet_id]
  client_cidrs = var.client_cidrs
  cold_tier    = { bucket = module.bucket.bucket, prefix = module.bucket.prefix, budget = "500g" }
  release      = var.release
  secrets      = { users = var.users_secret_arn, tls = var.tls_secret_arn }
}
