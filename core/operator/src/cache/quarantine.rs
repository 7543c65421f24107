//! Nodes on which workers fail again and again: counted over all jobs, forgotten with time.
//!
//! What is counted is a suspicion, and what follows is a preference: new workers go elsewhere where they can. A program that
//! fails wherever it runs must not give its nodes a bad name: of a job that fails on several nodes each failure counts for
//! its part alone, and of a job that is on one node, for half.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Failures that are remembered at most; the oldest go first.
const MOST: usize = 5_000;
/// After so many half-lives a failure is forgotten.
const FORGOTTEN: u32 = 8;
/// What was counted is good for so long, unless something fails.
const FRESH: Duration = Duration::from_secs(1);

/// A worker that failed on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed: told again, it counts once.
    pub of: String,
    /// UID of its job.
    pub job: String,
    pub node: String,
    /// The job has workers on other nodes.
    pub among_others: bool,
}

#[derive(Debug)]
pub(super) struct Quarantine {
    /// Failures within a half-life that put a node in; 0 = none does.
    limit: u32,
    half_life: Duration,
    failures: HashMap<String, (Failure, Instant)>,
    held: BTreeSet<String>,
    /// When `held` was counted; `None` = something has failed since.
    counted: Option<Instant>,
}

impl Default for Quarantine {
    fn default() -> Self {
        Quarantine::new(0, Duration::from_secs(3600))
    }
}

impl Quarantine {
    pub(super) fn new(limit: u32, half_life: Duration) -> Self {
        let half_life = half_life.max(Duration::from_secs(1));
        Quarantine { limit, half_life, failures: HashMap::new(), held: BTreeSet::new(), counted: None }
    }

    /// Counts a failure that came at `at`; true if that puts its node in. One that would be forgotten by now is none.
    pub(super) fn note(&mut self, failure: Failure, at: Instant, now: Instant) -> bool {
        if self.failures.contains_key(&failure.of) || now.saturating_duration_since(at) >= self.memory() {
            return false;
        }
        self.forget(now);
        let node = failure.node.clone();
        let before = self.held(now).contains(&node);
        self.failures.insert(failure.of.clone(), (failure, at));
        self.counted = None;
        !before && self.held(now).contains(&node)
    }

    /// The nodes that are in: from the failure that made them too many within one half-life, until what is left of all of
    /// them is less than half of that.
    pub(super) fn held(&mut self, now: Instant) -> &BTreeSet<String> {
        if self.counted.is_none_or(|at| now.saturating_duration_since(at) >= FRESH) {
            self.held = self.count(now);
            self.counted = Some(now);
        }
        &self.held
    }

    fn count(&self, now: Instant) -> BTreeSet<String> {
        let limit = f64::from(self.limit);
        let (mut lately, mut left) = (HashMap::new(), HashMap::new());
        let mut nodes_of: HashMap<&str, HashSet<&str>> = HashMap::new();
        for (failure, _) in self.failures.values() {
            nodes_of.entry(&failure.job).or_default().insert(&failure.node);
        }
        for (failure, at) in self.failures.values() {
            let age = now.saturating_duration_since(*at);
            let weight = weight(failure, nodes_of.get(failure.job.as_str()).map_or(1, HashSet::len));
            if age < self.half_life {
                *lately.entry(failure.node.as_str()).or_insert(0.0) += weight;
            }
            let decayed = weight * 0.5_f64.powf(age.as_secs_f64() / self.half_life.as_secs_f64());
            *left.entry(failure.node.as_str()).or_insert(0.0) += decayed;
        }
        let sum = |of: &HashMap<&str, f64>, node: &str| of.get(node).copied().unwrap_or(0.0);
        let mut held: BTreeSet<String> =
            self.held.iter().filter(|node| sum(&left, node) >= limit / 2.0).cloned().collect();
        // Thirds and the like fall a hair short.
        held.extend(lately.iter().filter(|(_, n)| **n + 1e-9 >= limit).map(|(node, _)| (*node).to_owned()));
        if self.limit == 0 { BTreeSet::new() } else { held }
    }

    /// Failures within a time, by node, each counted whole.
    pub(super) fn within(&self, time: Duration, now: Instant) -> HashMap<String, u32> {
        let mut all: HashMap<String, u32> = HashMap::new();
        for (failure, at) in self.failures.values() {
            if now.saturating_duration_since(*at) < time {
                *all.entry(failure.node.clone()).or_default() += 1;
            }
        }
        all
    }

    /// For how long a failure is remembered.
    pub(super) fn memory(&self) -> Duration {
        self.half_life.saturating_mul(FORGOTTEN).max(super::nodes::REMEMBERED)
    }

    fn forget(&mut self, now: Instant) {
        let longest = self.memory();
        self.failures.retain(|_, (_, at)| now.saturating_duration_since(*at) < longest);
        if self.failures.len() >= MOST
            && let Some(oldest) = self.failures.iter().min_by_key(|(_, (_, at))| *at).map(|(of, _)| of.clone())
        {
            self.failures.remove(&oldest);
        }
    }
}

/// What one failure counts, of a job that failed on so many nodes.
fn weight(failure: &Failure, nodes: usize) -> f64 {
    let share = 1.0 / f64::from(u32::try_from(nodes.max(1)).unwrap_or(u32::MAX));
    if failure.among_others { share } else { share / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn failure(of: &str, job: &str, node: &str) -> Failure {
        Failure { of: of.into(), job: job.into(), node: node.into(), among_others: true }
    }

    fn held(of: &mut Quarantine, now: Instant) -> Vec<String> {
        of.held(now).iter().cloned().collect()
    }

    #[test]
    fn three_failures_within_an_hour_put_a_node_in_and_time_lets_it_out() {
        let (mut all, began) = (Quarantine::new(3, HOUR), Instant::now());
        assert!(!all.note(failure("a", "j", "n"), began, began));
        assert!(!all.note(failure("a", "j", "n"), began, began), "told again it counts once");
        assert!(!all.note(failure("b", "j", "n"), began + HOUR / 2, began + HOUR / 2));
        assert!(all.note(failure("c", "k", "n"), began + HOUR / 2, began + HOUR / 2), "jobs share what they know");
        assert!(!all.note(failure("d", "k", "n"), began + HOUR / 2, began + HOUR / 2), "it is in already");
        assert_eq!(held(&mut all, began + HOUR), ["n"]);
        assert_eq!(held(&mut all, began + 2 * HOUR), Vec::<String>::new());
    }

    /// Names of nodes are given again to other machines: what was held against one is not held for ever.
    #[test]
    fn horovod_3319_a_node_that_failed_however_often_is_let_out_and_begins_anew() {
        let (mut all, began) = (Quarantine::new(3, HOUR), Instant::now());
        for of in 0..100 {
            all.note(failure(&format!("a{of}"), "j", "n"), began, began);
        }
        assert_eq!(held(&mut all, began + 5 * HOUR), ["n"], "so many weigh for longer");
        let later = began + 7 * HOUR;
        assert_eq!(held(&mut all, later), Vec::<String>::new());
        assert!(!all.note(failure("b", "k", "n"), later, later), "one failure is no reason, whatever was before");
        let last = began + all.memory();
        all.note(failure("c", "k", "m"), last, last);
        assert_eq!(all.failures.len(), 2, "those of the beginning are forgotten");
    }

    #[test]
    fn a_failure_counts_from_when_it_came() {
        let (mut all, began) = (Quarantine::new(3, HOUR), Instant::now());
        let now = began + 9 * HOUR;
        for of in ["a", "b", "c"] {
            assert!(
                !all.note(failure(of, "j", "old"), began, now),
                "told of late, as to an operator that was started anew"
            );
            all.note(failure(&format!("{of}2"), "k", "lately"), now.checked_sub(HOUR / 2).unwrap(), now);
        }
        assert_eq!(held(&mut all, now), ["lately"]);
        assert_eq!(
            all.within(9 * HOUR + HOUR / 2, now),
            [("lately".to_owned(), 3)].into(),
            "none is older than the memory"
        );
        assert_eq!(held(&mut all, now + HOUR), Vec::<String>::new());
    }

    #[test]
    fn failures_far_apart_are_no_reason() {
        let (mut all, began) = (Quarantine::new(3, HOUR), Instant::now());
        for (n, of) in ["a", "b", "c", "d", "e"].iter().enumerate() {
            let at = began + HOUR * u32::try_from(n).unwrap_or(0);
            assert!(!all.note(failure(of, "j", "n"), at, at), "{of}");
        }
    }

    #[test]
    fn a_job_that_fails_wherever_it_runs_is_itself_the_reason() {
        let (mut all, now) = (Quarantine::new(3, HOUR), Instant::now());
        for node in ["n", "m", "o"] {
            for of in 0..3 {
                all.note(failure(&format!("{node}{of}"), "broken", node), now, now);
            }
        }
        assert_eq!(held(&mut all, now), Vec::<String>::new());
        // One that fails on the same of its nodes each time speaks of the node.
        for of in 0..3 {
            all.note(failure(&format!("p{of}"), "sound", "p"), now, now);
        }
        assert_eq!(held(&mut all, now), ["p"]);
    }

    #[test]
    fn a_job_of_one_node_counts_half() {
        let (mut all, now) = (Quarantine::new(3, HOUR), Instant::now());
        let one = |of: usize| Failure { among_others: false, ..failure(&format!("a{of}"), "j", "n") };
        assert!((0..5).all(|of| !all.note(one(of), now, now)));
        assert!(all.note(one(5), now, now));
    }

    #[test]
    fn it_can_be_turned_off_and_counts_for_placement_all_the_same() {
        let (mut all, now) = (Quarantine::new(0, HOUR), Instant::now());
        for of in 0..9 {
            assert!(!all.note(failure(&format!("a{of}"), "j", "n"), now, now));
        }
        assert!(held(&mut all, now).is_empty());
        assert_eq!(all.within(HOUR, now), [("n".to_owned(), 9)].into());
        assert!(all.within(HOUR, now + HOUR).is_empty());
    }
}
