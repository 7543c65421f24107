//! The circuit breaker: per job and module digest, so that one tenant's bad config trips nobody else and a new version
//! of a module starts with a clean sheet.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::state::Circuit;
use crate::time::Time;

/// Failures in a row that open the circuit.
pub const CIRCUIT_AFTER: u32 = 3;
/// How long it stays open at first; doubles with each half-open try that fails.
pub const CIRCUIT_FIRST: Duration = Duration::from_secs(60);
/// The longest that it stays open.
pub const CIRCUIT_CAP: Duration = Duration::from_secs(1800);
/// Digests that are remembered per job.
const MAX_DIGESTS: usize = 4;

/// The circuits of one job, by digest.
type Circuits = BTreeMap<String, Circuit>;

/// Until when the policy is not to be asked; `None` = ask it (a try after the time has passed is the half-open one).
/// `generations`: of the spec that it was asked about last, if any, and of the present one. A spec that has changed since may
/// have been mended: it has one try at once.
pub(crate) fn open_until(
    circuits: &Circuits,
    digest: &str,
    generations: (Option<u64>, u64),
    now: Time,
) -> Option<Time> {
    if generations.0.is_some_and(|last| last != generations.1) {
        return None;
    }
    circuits.get(digest).and_then(|c| c.open_until).filter(|until| *until > now)
}

/// Counts a failure; gives back how many there were in a row.
pub(crate) fn failed(circuits: &mut Circuits, digest: &str, now: Time) -> u32 {
    if circuits.len() >= MAX_DIGESTS && !circuits.contains_key(digest) {
        // The one that has not failed for the longest.
        let oldest = circuits.iter().min_by_key(|(_, c)| (c.last, c.open_until)).map(|(digest, _)| digest.clone());
        oldest.map(|digest| circuits.remove(&digest));
    }
    let circuit: &mut Circuit = circuits.entry(digest.to_owned()).or_default();
    circuit.failures = circuit.failures.saturating_add(1);
    circuit.last = Some(now);
    if circuit.failures >= CIRCUIT_AFTER {
        let doublings = (circuit.failures - CIRCUIT_AFTER).min(16);
        circuit.open_until = Some(now.plus(CIRCUIT_FIRST.saturating_mul(1 << doublings).min(CIRCUIT_CAP)));
    }
    circuit.failures
}

/// Failures in a row so far.
pub(super) fn failures(circuits: &Circuits, digest: &str) -> u32 {
    circuits.get(digest).map_or(0, |c| c.failures)
}

/// An answer closes the circuit.
pub(crate) fn answered(circuits: &mut Circuits, digest: &str) {
    circuits.remove(digest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_digest_that_has_not_failed_for_the_longest_is_forgotten() {
        let mut circuits = Circuits::new();
        let at = |s: u64| Time(s * 1000);
        // Read back after a restart: it is not known when it failed.
        circuits.insert("restored".into(), Circuit { failures: 2, ..Circuit::default() });
        for (second, digest) in ["d", "a", "c", "d", "b"].into_iter().enumerate() {
            failed(&mut circuits, digest, at(second.try_into().unwrap()));
        }
        assert_eq!(circuits.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        failed(&mut circuits, "e", at(9));
        assert_eq!(circuits.keys().collect::<Vec<_>>(), ["b", "c", "d", "e"], "a failed first");
        failed(&mut circuits, "f", at(10));
        assert_eq!(circuits.keys().collect::<Vec<_>>(), ["b", "d", "e", "f"], "d failed after c");
        assert_eq!(failures(&circuits, "d"), 2);
    }
}
