# A cluster in each of two regions. shared = true: one bucket in the first region, which both use under different region
# names. shared = false: a bucket a region, replicated in both directions; reads stay in their region, storage costs twice.

provider "aws" {
  region = var.regions[0]
}

provider "aws" {
  alias  = "second"
  region = var.regions[1]
}

module "bucket" {
  source = "../../modules/cold_tier_bucket"

  bucket        = var.bucket
  writer_roles  = ["ci-node-*"]
  replicated    = !var.shared
  backstop_days = 90
}

module "second_bucket" {
  source    = "../../modules/cold_tier_bucket"
  count     = var.shared ? 0 : 1
  providers = { aws = aws.second }

  bucket        = "${var.bucket}-second"
  writer_roles  = ["ci-node-*"]
  replicated    = true
  backstop_days = 90
}

module "there" {
  source = "../../modules/bucket_replication"
  count  = var.shared ? 0 : 1

  source_bucket       = module.bucket.bucket
  destination_buckets = [module.second_bucket[0].bucket]
}

module "back" {
  source    = "../../modules/bucket_replication"
  count     = var.shared ? 0 : 1
  providers = { aws = aws.second }

  source_bucket       = module.second_bucket[0].bucket
  destination_buckets = [module.bucket.bucket]
}

module "first" {
  source = "../../modules/cluster"

  name         = "ci"
  vpc_id       = var.networks[0].vpc_id
  subnet_ids   = var.networks[0].subnet_ids
  client_cidrs = var.networks[0].client_cidrs
  cold_tier    = { bucket = module.bucket.bucket, prefix = module.bucket.prefix, region = module.bucket.region }
  region_name  = var.regions[0]
  release      = var.release
  secrets      = { users = var.networks[0].users_secret_arn, tls = var.networks[0].tls_secret_arn }
}

module "second" {
  source    = "../../modules/cluster"
  providers = { aws = aws.second }

  name         = "ci"
  vpc_id       = var.networks[1].vpc_id
  subnet_ids   = var.networks[1].subnet_ids
  client_cidrs = var.networks[1].client_cidrs
  cold_tier = var.shared ? {
    bucket = module.bucket.bucket, prefix = module.bucket.prefix, region = module.bucket.region
    } : {
    bucket = module.second_bucket[0].bucket, prefix = module.second_bucket[0].prefix, region = module.second_bucket[0].region
  }
  region_name = var.regions[1]
  release     = var.release
  secrets     = { users = var.networks[1].users_secret_arn, tls = var.networks[1].tls_secret_arn }
}
