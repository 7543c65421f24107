//! The host of WebAssembly policies.
