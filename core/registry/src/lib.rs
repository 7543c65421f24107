//! Reads the config of container images from their registries (OCI distribution, as Docker Hub and others speak it).
//!
//! Image names come from users, and so do the registries in them: nothing that one answers may take more memory or time
//! than is granted here, and what one user's credentials have opened is shown to no other. So nothing is kept between two
//! readings, each has its own credentials, and every answer has a limit. `docs/decisions/0017-image-commands.md` says more.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: sockets and deadlines")]

mod client;
mod credentials;
mod error;
mod manifest;
mod place;
mod settings;
mod tls;

pub use client::{Client, Config};
pub use credentials::{Credential, Keyring, KeyringError, SecretKind};
pub use error::ReadError;
pub use settings::{Settings, SetupError};
