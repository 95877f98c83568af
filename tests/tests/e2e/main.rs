//! One node from the outside: what its clients, its operator and its operating system see.

mod absent;
mod access;
mod admin;
mod admin_grpc;
mod budgets;
mod client_limits;
mod codecs;
mod configuration;
mod damage;
mod dialects;
mod full_disk;
mod operating;
mod quotas;
mod recorded;
mod reflection;
mod reload;
mod restart;
mod settings;
mod sizes;
mod wire;
