//! Clusters and buckets under load, while machines and links fail: minutes of it
//! (`cargo xtask ci-suite failures`).

mod builds;
mod churn;
mod data;
mod evict;
mod kills;
mod loss;
mod lost_member;
mod mixed;
mod outage;
mod partition;
mod reads;
mod under_load;
