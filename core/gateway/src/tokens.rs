//! Answers of the authenticator, kept for a while.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::etcd::lock;
use crate::keys::is_uid;
use crate::metrics::Metrics;
use crate::{AuthError, Authenticator, Caller};

/// How long a token that was good is not asked about again.
const FRESH: Duration = Duration::from_secs(300);
/// How long it stays good while nobody can tell.
const USABLE: Duration = Duration::from_secs(3600);
/// How long a token that is not valid is not asked about again.
const REFUSED: Duration = Duration::from_secs(30);
/// Tokens whose pod was not known are asked about again soon: news of a new pod may be late.
const FORBIDDEN: Duration = Duration::from_secs(2);
/// For one answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Refusals that are remembered. More are forgotten all at once.
const MOST_REFUSED: usize = 10_000;
/// Questions at once: a crowd of agents that reconnect waits instead of flooding the API server.
const AT_ONCE: usize = 64;

type Hash = [u8; 32];

/// An authenticator with memory. Tokens themselves are not kept.
#[derive(Debug)]
pub(crate) struct Tokens<A> {
    inner: A,
    good: Mutex<HashMap<Hash, (Caller, Instant)>>,
    refused: Mutex<HashMap<Hash, (AuthError, Instant)>>,
    asking: Semaphore,
    most: usize,
    metrics: Metrics,
}

impl<A: Authenticator> Tokens<A> {
    /// Keeps at most so many good ones.
    pub(crate) fn new(inner: A, most: usize, metrics: Metrics) -> Self {
        Tokens {
            inner,
            good: Mutex::default(),
            refused: Mutex::default(),
            asking: Semaphore::new(AT_ONCE),
            most,
            metrics,
        }
    }

    pub(crate) async fn caller(&self, token: &str) -> Result<Caller, AuthError> {
        self.caller_at(token, Instant::now()).await
    }

    async fn caller_at(&self, token: &str, now: Instant) -> Result<Caller, AuthError> {
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        if let Some(answer) = self.remembered(&hash, now) {
            return answer;
        }
        let _turn = self.asking.acquire().await;
        // Another request of the same agent may have asked meanwhile.
        if let Some(answer) = self.remembered(&hash, now) {
            return answer;
        }
        let answer = match tokio::time::timeout(ANSWER, self.inner.authenticate(token)).await {
            Ok(Ok(caller)) if is_uid(&caller.job_uid) && is_uid(&caller.pod_uid) => Ok(caller),
            Ok(Ok(caller)) => Err(AuthError::Forbidden(format!("{}: a UID that can't be one", caller.pod))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(AuthError::Unavailable("no answer in 10 s".to_owned())),
        };
        self.remember(hash, answer, now)
    }

    fn remembered(&self, hash: &Hash, now: Instant) -> Option<Result<Caller, AuthError>> {
        if let Some((caller, at)) = lock(&self.good).get(hash)
            && now - *at < FRESH
        {
            return Some(Ok(caller.clone()));
        }
        let refused = lock(&self.refused);
        let (error, at) = refused.get(hash)?;
        let keep = if matches!(error, AuthError::Invalid(_)) { REFUSED } else { FORBIDDEN };
        ((now - *at) < keep).then(|| Err(error.clone()))
    }

    fn remember(&self, hash: Hash, answer: Result<Caller, AuthError>, now: Instant) -> Result<Caller, AuthError> {
        match &answer {
            Ok(caller) => {
                self.metrics.review("valid");
                let mut good = lock(&self.good);
                if good.len() >= self.most {
                    good.retain(|_, (_, at)| (now - *at) < FRESH);
                }
                if good.len() < self.most {
                    good.insert(hash, (caller.clone(), now));
                }
            }
            Err(AuthError::Unavailable(_)) => {
                self.metrics.review("unavailable");
                if let Some((caller, at)) = lock(&self.good).get(&hash)
                    && now - *at < USABLE
                {
                    return Ok(caller.clone());
                }
            }
            Err(error) => {
                self.metrics.review(if matches!(error, AuthError::Invalid(_)) { "invalid" } else { "forbidden" });
                lock(&self.good).remove(&hash);
                let mut refused = lock(&self.refused);
                if refused.len() >= MOST_REFUSED {
                    refused.clear();
                }
                refused.insert(hash, (error.clone(), now));
            }
        }
        answer
    }

    /// Forgets what can't be used any more.
    pub(crate) fn sweep(&self, now: Instant) {
        lock(&self.good).retain(|_, (_, at)| (now - *at) < USABLE);
        lock(&self.refused).retain(|_, (_, at)| (now - *at) < REFUSED);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Knows tokens that are names of pods.
    #[derive(Default)]
    struct Names {
        asked: AtomicUsize,
        away: std::sync::atomic::AtomicBool,
    }

    impl Authenticator for &'static Names {
        async fn authenticate(&self, token: &str) -> Result<Caller, AuthError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.away.load(Ordering::SeqCst) {
                return Err(AuthError::Unavailable("away".into()));
            }
            match token.strip_prefix("pod-") {
                Some(uid) => {
                    Ok(Caller { namespace: "ns".into(), pod: token.into(), pod_uid: uid.into(), job_uid: "job".into() })
                }
                None => Err(AuthError::Invalid("no name".into())),
            }
        }
    }

    fn names() -> &'static Names {
        Box::leak(Box::default())
    }

    #[tokio::test]
    async fn a_token_is_looked_up_once_in_five_minutes() {
        let (names, now) = (names(), Instant::now());
        let tokens = Tokens::new(names, 10, Metrics::default());
        for _ in 0..100 {
            assert_eq!(tokens.caller_at("pod-1", now).await.unwrap().pod_uid, "1");
            assert!(matches!(tokens.caller_at("other", now).await, Err(AuthError::Invalid(_))));
        }
        assert_eq!(names.asked.load(Ordering::SeqCst), 2);
        tokens.caller_at("pod-1", now + FRESH).await.unwrap();
        assert_eq!(names.asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_token_that_was_good_stays_so_while_nobody_can_tell() {
        let (names, now) = (names(), Instant::now());
        let tokens = Tokens::new(names, 10, Metrics::default());
        tokens.caller_at("pod-1", now).await.unwrap();
        names.away.store(true, Ordering::SeqCst);
        assert_eq!(tokens.caller_at("pod-1", now + FRESH).await.unwrap().pod_uid, "1");
        assert!(matches!(tokens.caller_at("pod-2", now).await, Err(AuthError::Unavailable(_))));
        let late = tokens.caller_at("pod-1", now + USABLE).await;
        assert!(matches!(late, Err(AuthError::Unavailable(_))));
    }

    #[tokio::test]
    async fn memory_is_bounded_and_odd_uids_are_refused() {
        let (names, now) = (names(), Instant::now());
        let tokens = Tokens::new(names, 10, Metrics::default());
        for i in 0..MOST_REFUSED + 20 {
            let _ = tokens.caller_at(&format!("pod-{}", i % 100), now).await;
            let _ = tokens.caller_at(&format!("bad-{i}"), now).await;
        }
        assert!(lock(&tokens.good).len() <= 10);
        assert!(lock(&tokens.refused).len() <= MOST_REFUSED);
        assert!(matches!(tokens.caller_at("pod-../x", now).await, Err(AuthError::Forbidden(_))));
        tokens.sweep(now + USABLE);
        assert!(lock(&tokens.good).is_empty() && lock(&tokens.refused).is_empty());
    }
}
