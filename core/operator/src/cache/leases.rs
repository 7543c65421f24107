//! Leases of nodes. Kubelets renew them every 10 s, or every quarter of what else they are set to: a node that has died shows
//! there long before Kubernetes calls it not ready.
//!
//! No clocks are compared: a lease is followed by when it was seen to change. It is only old beside others that are renewed,
//! so that an API server or a watch that stands still speaks against no node.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// The namespace that kubelets keep them in.
pub const NAMESPACE: &str = "kube-node-lease";

/// With nothing heard for so long, be it of two nodes alone, the watch stood still: all begin anew. Above the 10.4 s that
/// kubelets take between two renewals of leases of 40 s; more where all leases are longer.
const BREAK: Duration = Duration::from_secs(12);
/// The shortest grace: a break that is not seen as one, and one renewal. More for leases that are longer than 40 s.
pub const SHORTEST: Duration = Duration::from_secs(25);
/// All leases are looked over this often at most.
const PERIOD: Duration = Duration::from_secs(1);

/// When each node was heard of.
#[derive(Debug, Default)]
pub struct Leases {
    /// For how long a node may be silent at least; zero = it is not watched.
    grace: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    renewed: HashMap<String, Renewal>,
    silent: BTreeSet<String>,
    /// When anything was last heard.
    heard: Option<Instant>,
    looked: Option<Instant>,
    listing: Option<HashSet<String>>,
}

/// What a lease last said.
#[derive(Debug)]
struct Renewal {
    /// In microseconds of its node's clock.
    said: i64,
    /// When that was news.
    at: Instant,
    /// How long it is good for. Its kubelet renews it each quarter of that.
    lasts: Duration,
}

impl Renewal {
    /// Two quarters may pass, and half of one more.
    fn grace(&self, least: Duration) -> Duration {
        least.max(self.lasts * 5 / 8)
    }
}

impl Inner {
    /// Whether nothing was heard for so long that the watch stood still.
    fn stood_still(&self, now: Instant) -> bool {
        let Some(silence) = self.heard.map(|at| now.saturating_duration_since(at)) else { return false };
        // Between two renewals of the lease that is renewed most often.
        let quickest = || self.renewed.values().map(|r| r.lasts * 3 / 10).min().unwrap_or_default();
        silence >= BREAK && silence >= quickest()
    }

    /// The node that was heard of is not silent any more; who is, is looked for now and then. Gives those that changed.
    fn turned(&mut self, heard_of: Option<&str>, grace: Duration, now: Instant) -> Vec<String> {
        let back = heard_of.is_some_and(|name| self.silent.remove(name));
        let mut turned: Vec<String> = heard_of.filter(|_| back).map(str::to_owned).into_iter().collect();
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= PERIOD);
        if due && self.listing.is_none() {
            self.looked = Some(now);
            let old = |r: &Renewal| now.saturating_duration_since(r.at) >= r.grace(grace);
            let silent = self.renewed.iter().filter(|(name, r)| old(r) && !self.silent.contains(*name));
            let silent: Vec<String> = silent.map(|(name, _)| name.clone()).collect();
            self.silent.extend(silent.iter().cloned());
            turned.extend(silent);
        }
        turned
    }

    /// Whatever is known is as good as new, but for those that were silent before.
    fn begin_anew(&mut self, now: Instant) {
        for (name, renewal) in &mut self.renewed {
            if !self.silent.contains(name) {
                renewal.at = now;
            }
        }
    }

    fn note(&mut self, name: &str, said: i64, lasts: Duration, now: Instant) -> bool {
        if let Some(listing) = &mut self.listing {
            listing.insert(name.to_owned());
        }
        let news = self.renewed.get(name).is_none_or(|known| known.said != said);
        if news {
            self.renewed.insert(name.to_owned(), Renewal { said, at: now, lasts });
        }
        news
    }

    fn remove(&mut self, name: &str) {
        self.renewed.remove(name);
        self.silent.remove(name);
    }
}

impl Leases {
    pub fn new(grace: Duration) -> Self {
        Leases { grace, ..Leases::default() }
    }

    /// Whether they are to be watched.
    pub fn is_wanted(&self) -> bool {
        !self.grace.is_zero()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A lease as the watch shows it; gives the nodes that have fallen silent, or are heard of again.
    pub fn seen(&self, lease: &Lease, now: Instant) -> Vec<String> {
        let Some(name) = lease.metadata.name.as_deref() else { return Vec::new() };
        let Some(spec) = lease.spec.as_ref() else { return Vec::new() };
        let Some(renewed) = spec.renew_time.as_ref() else { return Vec::new() };
        let said = renewed.0.as_microsecond();
        let lasts = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or_default();
        self.with(|i| {
            if i.stood_still(now) {
                i.begin_anew(now);
            }
            i.heard = Some(now);
            let news = i.note(name, said, Duration::from_secs(lasts), now);
            i.turned(Some(name).filter(|_| news), self.grace, now)
        })
    }

    pub fn gone(&self, name: &str) {
        self.with(|i| i.remove(name));
    }

    pub fn list_begins(&self) {
        self.with(|i| i.listing = Some(HashSet::new()));
    }

    /// What a list shows may be old: none of it speaks against a node yet.
    pub fn list_ends(&self, now: Instant) {
        self.with(|i| {
            let Some(listed) = i.listing.take() else { return };
            let missing: Vec<String> = i.renewed.keys().filter(|name| !listed.contains(*name)).cloned().collect();
            for name in &missing {
                i.remove(name);
            }
            i.begin_anew(now);
            i.heard = Some(now);
        });
    }

    /// Whether a node's lease has not been renewed for long, while those of others were.
    pub fn is_silent(&self, node: &str) -> bool {
        self.with(|i| i.silent.contains(node))
    }

    /// All nodes of which that is so, by name.
    pub fn silent(&self) -> Vec<String> {
        self.with(|i| i.silent.iter().cloned().collect())
    }

    pub fn count(&self) -> usize {
        self.with(|i| i.silent.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    struct World {
        leases: Leases,
        began: Instant,
    }

    impl World {
        /// Nodes a and b, as first listed.
        fn new() -> Self {
            let world = World { leases: Leases::new(SHORTEST), began: Instant::now() };
            world.leases.list_begins();
            for name in ["a", "b"] {
                assert!(world.renew(name, 0, 0).is_empty());
            }
            world.leases.list_ends(world.began);
            world
        }

        fn at(&self, second: u64) -> Instant {
            self.began + Duration::from_secs(second)
        }

        /// A lease that says `of`, in seconds of its node's clock, and is seen in some second of ours.
        fn renew(&self, name: &str, of: u64, second: u64) -> Vec<String> {
            self.renew_for(40, name, of, second)
        }

        fn renew_for(&self, lasts: u64, name: &str, of: u64, second: u64) -> Vec<String> {
            let time = format!("2001-01-01T00:{:02}:{:02}.000000Z", of / 60, of % 60);
            let spec = json!({"renewTime": time, "leaseDurationSeconds": lasts});
            let lease = json!({"metadata": {"name": name}, "spec": spec});
            self.leases.seen(&serde_json::from_value(lease).unwrap(), self.at(second))
        }
    }

    #[test]
    fn a_node_that_is_silent_while_others_are_not_is_told_of_once_and_again_when_it_is_back() {
        let world = World::new();
        let turned: Vec<Vec<String>> = [10, 20, 30, 40].iter().map(|s| world.renew("a", *s, *s)).collect();
        assert_eq!(turned, [vec![], vec![], vec!["b".to_owned()], vec![]]);
        assert!(world.leases.is_silent("b") && !world.leases.is_silent("a"));
        assert_eq!(world.renew("b", 41, 41), ["b"]);
        assert_eq!((world.leases.is_silent("b"), world.leases.count()), (false, 0));
    }

    #[test]
    fn what_says_the_same_again_is_no_renewal() {
        let world = World::new();
        world.renew("a", 10, 10);
        world.renew("b", 0, 11);
        world.renew("a", 20, 20);
        assert_eq!(world.renew("a", 30, 30), ["b"]);
    }

    #[test]
    fn while_nothing_is_heard_of_any_node_none_is_silent() {
        let world = World::new();
        world.renew("a", 10, 10);
        // The watch stood still, and what came meanwhile comes at once: b's word is on its way.
        assert!(world.renew("a", 70, 70).is_empty());
        assert!(world.renew("b", 71, 71).is_empty());
        for second in [80, 90] {
            assert!(world.renew("a", second, second).is_empty());
        }
        assert_eq!(world.renew("a", 100, 100), ["b"], "since then it counts");
    }

    #[test]
    fn a_node_that_renews_less_often_is_waited_for_accordingly() {
        let world = World::new();
        world.renew_for(120, "b", 1, 1);
        let turned: Vec<Vec<String>> = (1..=8).map(|n| world.renew("a", n * 10, n * 10)).collect();
        assert_eq!(turned.iter().position(|t| *t == ["b"]), Some(7), "75 s after it was heard of: {turned:?}");
        assert_eq!(turned.concat().len(), 1);
    }

    #[test]
    fn where_all_renew_less_often_a_longer_silence_is_no_break() {
        let world = World::new();
        for (name, second) in [("a", 1), ("b", 2)] {
            world.renew_for(160, name, second, second);
        }
        let turned: Vec<Vec<String>> = [41, 81, 121].iter().map(|s| world.renew_for(160, "a", *s, *s)).collect();
        assert_eq!(turned, [vec![], vec![], vec!["b".to_owned()]]);
    }

    #[test]
    fn a_list_speaks_against_nobody_and_clears_nobody() {
        let world = World::new();
        for second in [10, 20, 30] {
            world.renew("a", second, second);
        }
        assert!(world.leases.is_silent("b"));
        world.leases.list_begins();
        for name in ["c", "b", "a"] {
            assert!(world.renew(name, 0, 200).is_empty(), "{name}");
        }
        world.leases.list_ends(world.at(200));
        assert!(world.leases.is_silent("b"), "its lease is the same as before");
        assert!(!world.leases.is_silent("c"));
        world.leases.list_begins();
        world.leases.list_ends(world.at(201));
        assert!(!world.leases.is_silent("b"), "it is gone");
    }
}
