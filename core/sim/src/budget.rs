//! The books of failures: what was ever charged, whatever the window has forgotten since.

use std::collections::BTreeMap;

use eto_engine::state::{Charge, JobState, LossClass};
use eto_engine::time::Time;

use crate::check::Rule;
use crate::world::World;

/// Clocks of two replicas differ by less than this, in milliseconds.
const SKEW: u64 = 10_000;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Failures of the job's own that were made to happen, and what looks like one.
    pub(crate) own: u32,
    /// Failures that were charged and not taken back.
    pub(crate) charged: u32,
    /// What the last status had of them.
    known: BTreeMap<(LossClass, Time), Charge>,
    /// The status was lost: what it counted began anew.
    pub(crate) forgot: bool,
}

impl Budget {
    fn take(&mut self, state: &JobState, is_over: impl Fn(&Charge) -> bool) {
        let key = |c: &Charge| ((c.class, c.first), *c);
        let next: BTreeMap<_, _> = state.charges.iter().map(key).collect();
        for (key, charge) in &next {
            let before = self.known.get(key).map_or(0, |b| b.count);
            self.charged = (self.charged + charge.count).saturating_sub(before);
        }
        let gone = self.known.iter().filter(|(key, c)| !next.contains_key(key) && !is_over(c));
        let taken_back: u32 = gone.map(|(_, c)| c.count).sum();
        self.charged = self.charged.saturating_sub(taken_back);
        self.known = next;
    }
}

impl World {
    /// A state is stored: what it has charged is due, and ends the job where it is too much.
    pub(crate) fn check_budget(&mut self, state: &JobState) {
        if self.ghost.budget.forgot {
            return;
        }
        let (window, now) = (self.api.spec.elasticity.failure_window, self.now);
        let is_over = |c: &Charge| window.is_some_and(|w| c.last.plus(w) <= Time(now + SKEW));
        self.ghost.budget.take(state, is_over);
        let (charged, own) = (self.ghost.budget.charged, self.ghost.budget.own);
        self.demand(charged <= own, Rule::Budget, || format!("{charged} failures charged, and there were {own}"));
        let sum: u32 = state.charges.iter().map(|c| c.count).sum();
        let what = || format!("{} failures, and by class {:?}", state.failures, state.charges);
        self.demand(sum == state.failures, Rule::Budget, what);
        let spec = &self.api.spec;
        let over = |(class, limit): (&LossClass, &u32)| state.charged(*class) > *limit;
        let too_many = state.failures > spec.backoff_limit || spec.elasticity.failure_limits.iter().any(over);
        self.demand(!too_many || state.phase.is_terminal(), Rule::Budget, || {
            format!("the job goes on with {:?}", state.charges)
        });
    }
}
