//! The membership gateway: what agents talk to, and the etcd behind it.
//!
//! [`Store`] keeps groups in etcd: one assignment per job, written by the leader under a fence, and one record per
//! member, bound to the lease of the replica that the member's agent talks to. [`Groups`] is what is in there, kept
//! up to date by one watch. Nothing here knows Kubernetes: callers bring who a token belongs to.
#![warn(missing_docs)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: sockets, clocks and files")]

mod auth;
mod error;
mod etcd;
mod follow;
mod groups;
mod keys;
mod replica;
mod settings;
mod store;

pub use auth::{AUDIENCE, AuthError, Authenticator, Caller};
pub use error::{AssignError, StoreError};
pub use groups::{Change, Changes, Groups};
pub use replica::{Put, Replica};
pub use settings::StoreSettings;
pub use store::{Fence, Store};
