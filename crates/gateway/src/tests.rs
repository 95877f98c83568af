//! The front with a store in memory: requests without a network, and connections over real sockets.

mod actions;
mod calls;
mod connections;
mod fake;
mod logins;
mod messages;
mod requests;
mod shares;
mod unread;
