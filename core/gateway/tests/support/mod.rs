//! What the tests share: a real etcd of one or three members over TLS with client certificates.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod etcd;
pub(crate) mod facts;
pub(crate) mod look;
pub(crate) mod raw;
pub(crate) mod replica;
pub(crate) mod service;

use std::future::Future;
use std::time::Duration;

/// Waits until it holds; for no longer than a minute.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(tokio::time::Instant::now() < limit, "did not happen within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
