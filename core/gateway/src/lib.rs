//! The membership gateway: what agents talk to, and the etcd behind it.
//!
//! [`Store`] keeps groups in etcd: one assignment per job, written by the leader under a fence, and one record per
//! member, bound to the lease of the replica that the member's agent talks to. [`Groups`] is what is in there, kept
//! up to date by one watch. [`Server`] is what agents report to and learn their round from. Nothing here knows
//! Kubernetes: an [`Authenticator`] tells whose a token is.
#![warn(missing_docs)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: sockets, clocks and files")]

mod auth;
mod connection;
mod error;
mod etcd;
mod follow;
mod groups;
mod identity;
mod keys;
mod metrics;
mod replica;
mod requests;
mod server;
mod sessions;
mod settings;
mod slow;
mod space;
mod store;
mod tokens;
mod topics;
mod turns;
mod writer;

pub use auth::{AUDIENCE, AuthError, Authenticator, Caller};
pub use error::{AssignError, StoreError};
pub use groups::{Change, Changes, Groups};
pub use identity::{Authority, Identity, IdentityError};
pub use metrics::Metrics;
pub use replica::{Put, Replica};
pub use server::{Limits, Server, ServerError};
pub use settings::{StorePem, StoreSettings};
pub use space::Defragmented;
pub use store::{Fence, Store};
