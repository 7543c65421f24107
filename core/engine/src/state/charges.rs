//! Failures that count against the budgets of a job: of which class, and since when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{JobState, LossClass};
use crate::time::Time;

/// A failure is forgotten at most this part of the window later than the window says: those that come so soon after
/// another are kept as one entry, so that a status stays small.
const PARTS: u32 = 4;

/// Failures of one class at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// What failed.
    pub class: LossClass,
    /// When the first of them was charged.
    pub first: Time,
    /// When the last of them was.
    pub last: Time,
    /// How many, at least 1.
    pub count: u32,
}

impl JobState {
    /// Failures of this class that count.
    pub fn charged(&self, class: LossClass) -> u32 {
        self.charges.iter().filter(|c| c.class == class).fold(0, |sum, c| sum.saturating_add(c.count))
    }

    /// `count` failures more.
    pub(crate) fn charge(&mut self, class: LossClass, count: u32, window: Option<Duration>, now: Time) {
        self.failures = self.failures.saturating_add(count);
        let soon = |c: &&mut Charge| c.class == class && window.is_none_or(|w| now.since(c.first) < w / PARTS);
        match self.charges.iter_mut().rev().find(soon) {
            Some(charge) => (charge.last, charge.count) = (now, charge.count.saturating_add(count)),
            None => self.charges.push(Charge { class, first: now, last: now, count }),
        }
    }

    /// The last failure was none.
    pub(crate) fn take_back_charge(&mut self) {
        self.failures = self.failures.saturating_sub(1);
        if let Some(at) = (0..self.charges.len()).max_by_key(|at| self.charges[*at].last) {
            self.charges[at].count = self.charges[at].count.saturating_sub(1);
            self.charges.retain(|c| c.count > 0);
        }
    }

    /// Failures that are older than the window do not count any more.
    pub(crate) fn forget_charges(&mut self, window: Option<Duration>, now: Time) {
        let Some(window) = window else { return };
        let old = |c: &Charge| c.last.plus(window) <= now;
        let gone = self.charges.iter().filter(|c| old(c)).fold(0u32, |sum, c| sum.saturating_add(c.count));
        self.failures = self.failures.saturating_sub(gone);
        self.charges.retain(|c| !old(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

    fn at(second: u64) -> Time {
        Time(1_000_000 + second * 1000)
    }

    #[test]
    fn without_a_window_nothing_is_forgotten_and_nothing_grows() {
        let mut state = JobState::default();
        for second in 0..1000 {
            state.forget_charges(None, at(second * 1000));
            state.charge(LossClass::Hung, 1, None, at(second * 1000));
            state.charge(LossClass::PodFailed, 2, None, at(second * 1000));
        }
        assert_eq!((state.failures, state.charges.len()), (3000, 2));
        assert_eq!((state.charged(LossClass::Hung), state.charged(LossClass::PodFailed)), (1000, 2000));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten_and_not_before() {
        let mut state = JobState::default();
        for second in [0, 899, 900, 2000] {
            state.charge(LossClass::ProcessFailed, 1, HOUR, at(second));
        }
        for (second, left) in [(3600, 4), (4498, 4), (4499, 2), (4500, 1), (5599, 1), (5600, 0)] {
            state.forget_charges(HOUR, at(second));
            assert_eq!((state.failures, state.charged(LossClass::ProcessFailed)), (left, left), "after {second} s");
        }
    }

    #[test]
    fn the_list_is_short_however_many_there_are() {
        let mut state = JobState::default();
        for second in 0..20_000 {
            state.forget_charges(HOUR, at(second));
            state.charge(LossClass::ProcessFailed, 1, HOUR, at(second));
            assert!(state.charges.len() <= 6, "{:?}", state.charges);
            assert!(state.failures >= u32::try_from(second.min(3599)).unwrap_or(0));
        }
    }

    #[test]
    fn the_last_is_taken_back() {
        let mut state = JobState::default();
        state.charge(LossClass::Hung, 1, HOUR, at(0));
        state.charge(LossClass::ProcessFailed, 1, HOUR, at(1));
        state.take_back_charge();
        assert_eq!(
            (state.failures, state.charged(LossClass::ProcessFailed), state.charged(LossClass::Hung)),
            (1, 0, 1)
        );
        state.take_back_charge();
        state.take_back_charge();
        assert_eq!((state.failures, state.charges.len()), (0, 0));
    }
}
