//! The store that torch's processes meet at (`torch.distributed.TCPStore`), served without torch.
//!
//! With `torchrun`'s own elasticity the store must outlive every worker, or the loss of the worker that serves it ends
//! them all. This one needs no Python and no worker: any process of ours can serve it. A run of torch gets a store of
//! its own ([`Server`]), so that nothing of an earlier run is in it.
//!
//! [`wire`] reads requests, [`Store`] is what they mean (both pure), [`Server`] puts sockets around them.
#![warn(missing_docs)]

mod server;
mod store;
pub mod wire;

pub use server::{Limits, Server};
pub use store::{Full, NotANumber, Store, StoreError, WaiterId};
