//! Waiting for what must come, on watches: no polling, no sleeps.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::{Failure, Outcome};

/// Watches the objects with `labels` until `check` is content with them, and gives its result. `check` says what is
/// missing as long as it is not; the last such sentence is in the failure.
pub async fn until<K, T>(
    api: &Api<K>,
    labels: &str,
    within: Duration,
    mut check: impl FnMut(&[K]) -> Result<T, String>,
) -> Outcome<T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let changes = watcher(api.clone(), watcher::Config::default().labels(labels)).default_backoff();
    pin_mut!(changes);
    let mut objects: BTreeMap<String, K> = BTreeMap::new();
    let mut missing = "nothing was seen".to_owned();
    let waiting = async {
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Init) => {
                    objects.clear();
                    continue;
                }
                Ok(watcher::Event::InitApply(object)) => {
                    objects.insert(object.name_any(), object);
                    continue;
                }
                Ok(watcher::Event::Apply(object)) => {
                    objects.insert(object.name_any(), object);
                }
                Ok(watcher::Event::Delete(object)) => {
                    objects.remove(&object.name_any());
                }
                Ok(watcher::Event::InitDone) => {}
                Err(error) => {
                    missing = error.to_string();
                    continue;
                }
            }
            let all: Vec<K> = objects.values().cloned().collect();
            match check(&all) {
                Ok(got) => return Some(got),
                Err(what) => missing = what,
            }
        }
        None
    };
    match tokio::time::timeout(within, waiting).await {
        Ok(Some(got)) => Ok(got),
        Ok(None) | Err(_) => Err(Failure(format!("after {within:?}: {missing}"))),
    }
}

/// Watches for `long` and fails if `check` is ever discontent: for what must not happen.
pub async fn never<K>(
    api: &Api<K>,
    labels: &str,
    long: Duration,
    mut check: impl FnMut(&[K]) -> Result<(), String>,
) -> Outcome
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let broken = until(api, labels, long, |all| match check(all) {
        Ok(()) => Err("fine".to_owned()),
        Err(what) => Ok(what),
    });
    match broken.await {
        Ok(what) => Err(Failure(what)),
        Err(_) => Ok(()),
    }
}
