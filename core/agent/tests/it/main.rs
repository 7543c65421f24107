//! The agent's program with real processes, against a small gateway over real TLS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start processes and read files")]

mod api;
mod ends;
mod gateway;
mod links;
mod native;
mod pod;
mod python;
mod rounds;
mod stops;
