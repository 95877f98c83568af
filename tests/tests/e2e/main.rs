//! One node from the outside: what its clients, its operator and its operating system see.

mod access;
mod admin;
mod admin_grpc;
mod budgets;
mod configuration;
mod dialects;
mod full_disk;
mod limits;
mod operating;
mod quotas;
mod restart;
mod sizes;
mod wire;
