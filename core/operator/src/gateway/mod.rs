//! The membership gateway's side in the operator: its certificates, and whose tokens it takes.

pub mod auth;
pub mod pki;
pub mod secrets;
