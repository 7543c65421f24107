//! The whole system in virtual time: a cluster that lags, loses and lies late, two replicas of the operator around the
//! real `plan`, the real agents in their pods, etcd and the gateway between them, and faults at any moment. All of it
//! from one seed, so that what went wrong once goes wrong again.
//!
//! Nothing here reads a clock or does input or output. What is modelled and what is not: `docs/simulation.md`.
#![warn(missing_docs)]

mod api;
mod budget;
mod calm;
mod check;
mod container;
mod defects;
mod etcd;
mod faults;
mod gateway;
mod network;
mod nodes;
mod operator;
mod people;
mod random;
mod replica;
mod scenario;
mod story;
mod sweep;
mod training;
mod world;

pub use check::{Rule, Violation};
pub use defects::Defect;
pub use sweep::{Change, Point};

/// What became of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed that it came from.
    pub seed: u64,
    /// Where the fault struck, in a sweep.
    pub point: Option<Point>,
    /// A rule that was broken; the run ends there.
    pub violation: Option<Violation>,
    /// What happened last, oldest first; empty unless it was asked for.
    pub trace: Vec<String>,
    /// What there was of it.
    pub counts: Counts,
}

impl Outcome {
    /// The command that tells it again.
    pub fn replay(&self) -> String {
        let point = self.point.map(|p| format!(" --point '{p}'")).unwrap_or_default();
        format!("cargo run -p eto-sim -- --seed {}{point} --trace", self.seed)
    }
}

/// How much there was in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events of the virtual world.
    pub events: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Calls of `plan`.
    pub plans: u64,
    /// Times that the operator ended between two of its writes.
    pub kills: u64,
    /// Rounds that were published.
    pub rounds: u64,
    /// Steps of training.
    pub steps: u64,
    /// Virtual milliseconds.
    pub virtual_ms: u64,
}

/// Runs the story of a seed. `trace`: how many of the last events are kept; 0 = none, which is faster.
pub fn run(seed: u64, trace: usize) -> Outcome {
    run_with(None, seed, trace)
}

/// The same with a product that has a defect, if one is given: a rule is worth something only if it finds one.
pub fn run_with(defect: Option<Defect>, seed: u64, trace: usize) -> Outcome {
    let mut world = world::World::new(seed, trace);
    world.defect = defect;
    world.tell_story();
    world.outcome(seed, None)
}

/// The job and cluster of a seed, with one fault at this point; `None` where the transaction has fewer steps, or does not
/// take place with this job.
pub fn run_at(seed: u64, point: Point, trace: usize) -> Option<Outcome> {
    let mut world = world::World::new_calm(seed, trace);
    let reached = world.tell_sweep(point);
    let outcome = world.outcome(seed, Some(point));
    (reached || outcome.violation.is_some()).then_some(outcome)
}

/// [`run_at`] before each step from this point on, until there is none.
pub fn sweep(seed: u64, from: Point) -> impl Iterator<Item = Outcome> {
    std::iter::successors(Some(from), |point| Some(point.next())).map_while(move |point| run_at(seed, point, 0))
}
