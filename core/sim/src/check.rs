//! The rules that hold at every moment, and what has to be remembered to check them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use eto_engine::guard::sizes;
use eto_engine::plan::NewPod;
use eto_engine::state::{JobState, Phase, RoundMode, Victim};
use eto_engine::time::Time;
use eto_membership::agent::Launch;
use eto_membership::{Assignment, Checkpoint, LOSS_GRACE_MS, Order, Round};

use crate::budget::Budget;
use crate::container::Container;
use crate::training::Process;
use crate::world::World;

/// What agents get at least beyond the grace of their processes, in milliseconds.
const STOP_MARGIN: u64 = 10_000;

/// A rule of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Never two different rounds of one generation.
    OneRound,
    /// Never two process groups alive in one pod.
    OneGroup,
    /// No member starts before the order `Run` of a round that names it.
    StartsByOrder,
    /// Nobody is told to run while processes of an earlier round run that could have been waited for.
    StoppedFirst,
    /// Never fewer than the minimum, nor another illegal size, by the operator's hand, nor without all who are no workers.
    LegalSize,
    /// In a run, in which members change without a stop, the store that they meet at stays where it is.
    OneStore,
    /// Of members that are started alone, none has the rank that another of them has.
    OneRank,
    /// Neither the master nor who is no worker is given up while it trains.
    MasterStays,
    /// A pod goes after its processes have stopped, or after their deadline.
    DeletedAfterStop,
    /// A checkpoint that was acknowledged is complete, and what starts later goes on from it or from a newer one.
    CheckpointKept,
    /// Each failure of the job's own is charged once; what is nobody's fault is free.
    Budget,
    /// What has ended stays as it is.
    Terminal,
    /// What is no witness of a loss restarts nothing.
    Undisturbed,
    /// When faults have ceased, the job trains at its target or has ended.
    Liveness,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// When, in milliseconds from the beginning of the story.
    pub at_ms: u64,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}.{:03} s: {}", self.rule, self.at_ms / 1000, self.at_ms % 1000, self.what)
    }
}

/// What is remembered of all that was ever published and done.
#[derive(Debug, Default)]
pub(crate) struct Ghost {
    rounds: BTreeMap<u64, Round>,
    /// Of which run each of them is a part.
    runs: BTreeMap<u64, Option<u64>>,
    /// Generations that had the order `Run`.
    run: BTreeSet<u64>,
    /// Generations that had the order `Stop`, and when processes of earlier ones must have ended if everybody was told at
    /// once.
    stop: BTreeMap<u64, u64>,
    /// When it was decided that the job is suspended, by the clock of the replica that did; `None` = it is not.
    suspended: Option<Time>,
    /// UIDs of pods that were given up: by two witnesses of their loss, or with a suspension that had waited for them.
    lost: BTreeSet<String>,
    /// How the job has ended, as was stored.
    end: Option<Phase>,
    pub(crate) budget: Budget,
}

impl Ghost {
    pub(crate) fn newest(&self) -> u64 {
        self.rounds.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// UIDs of the members of a round.
    pub(crate) fn members_of(&self, generation: u64) -> Option<Vec<String>> {
        Some(self.rounds.get(&generation)?.members.iter().filter_map(|m| m.uid.clone()).collect())
    }

    /// The run of a round, where its members change by themselves.
    pub(crate) fn run_of(&self, generation: u64) -> Option<u64> {
        self.runs.get(&generation).copied().flatten()
    }

    /// Processes failed, or seemed to, for something that befell others.
    pub(crate) fn looks_like_a_failure(&mut self) {
        self.budget.own += 1;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    pub(crate) fn note_lost(&mut self, uids: Vec<String>) {
        self.lost.extend(uids);
    }

    /// Whether the time is over that processes of this round had to stop in.
    fn is_stopped(&self, generation: u64, now: u64) -> bool {
        self.stop.range(generation + 1..).any(|(_, until)| now >= *until)
    }
}

impl World {
    /// A replica tells agents of a round.
    pub(crate) fn check_assignment(&mut self, at: usize, next: &Assignment) {
        let generation = next.round.generation;
        let known = self.ghost.rounds.get(&generation).cloned();
        if known.is_none() {
            self.counts.rounds += 1;
            self.ghost.rounds.insert(generation, next.round.clone());
            self.ghost.runs.insert(generation, next.native.map(|n| n.run));
        }
        let same = known.as_ref().is_none_or(|round| *round == next.round);
        self.demand(same, Rule::OneRound, || format!("{:?} and then {:?}", known, next.round));
        if next.order == Order::Stop {
            self.ghost.stop.insert(generation, self.now + next.grace_ms);
        }
        if next.order == Order::Run {
            // An order that etcd has lost is told again. Who was to stop for it had its time when it was first told.
            let again = !self.ghost.run.insert(generation);
            let size = u32::try_from(next.round.members.len()).unwrap_or(u32::MAX);
            let legal = sizes::at_most(&self.api.spec, size) == Some(size);
            let whole = (0..self.api.spec.types.count()).all(|index| next.round.rank_of(index).is_some());
            let what = || format!("round {generation} runs with {size} members: {:?}", next.round.members);
            self.demand(legal && whole, Rule::LegalSize, what);
            self.check_store(next);
            if !again {
                self.check_stopped(at, next);
            }
        }
        let ended = self.ghost.has_ended();
        self.demand(!ended || next.order == Order::End, Rule::Terminal, || format!("{next:?} after the end"));
    }

    /// Who goes on meets the others where it met them before. Whom the others go on without is to stop.
    fn check_store(&mut self, next: &Assignment) {
        let generation = next.round.generation;
        let Some(native) = next.native.filter(|n| n.run < generation) else { return };
        self.ghost.stop.insert(generation, self.now + next.grace_ms);
        let at = |round: &Round| (round.members.first().cloned(), round.port);
        let first = self.ghost.rounds.get(&native.run).map(at);
        let size = u32::try_from(next.round.members.len()).unwrap_or(u32::MAX);
        let same = first == Some(at(&next.round)) && (native.min..=native.max).contains(&size);
        self.demand(same, Rule::OneStore, || format!("{next:?}, and the run began at {first:?}"));
    }

    /// Whoever could be reached has stopped, or its time is over.
    fn check_stopped(&mut self, at: usize, next: &Assignment) {
        let generation = next.round.generation;
        let named = next.round.members.iter().filter_map(|m| m.uid.as_ref());
        named.for_each(|uid| _ = self.ghost.lost.remove(uid));
        let knows = |uid: &String| self.replicas[at].mind.as_ref().is_none_or(|m| m.takes_for_reached(uid));
        // With a status that was lost, it has to have heard of what runs.
        let forgot = self.ghost.budget.forgot;
        let of = |round: u64| !forgot || self.replicas[at].mind.as_ref().is_none_or(|m| m.has_heard_of(round));
        // What is left of before a run that goes on was judged when the run began: nobody starts for it now.
        let from = next.native.filter(|n| n.run < generation).map_or(0, |n| n.run);
        let runs = self.containers.iter().find(|(uid, c)| {
            let earlier = |p: &Process| {
                (from..generation).contains(&p.round) && (p.run.is_none() || p.run != next.native.map(|n| n.run))
            };
            let process = c.process.as_ref().filter(|p| earlier(p));
            let waited_for = process.is_some_and(|p| !self.ghost.is_stopped(p.round, self.now) && of(p.round));
            waited_for
                && self.reaches_gateway(uid)
                && self.is_heard(uid)
                && knows(uid)
                && self.api.pods.contains_key(*uid)
        });
        let what = runs.map(|(uid, c)| format!("{uid} is in round {:?} when {generation} is told to run", c.runs()));
        self.demand(what.is_none(), Rule::StoppedFirst, || what.unwrap_or_default());
    }

    pub(crate) fn check_start(&mut self, uid: &str, launch: &Launch) {
        let generation = launch.generation();
        let ran = self.ghost.run.contains(&generation);
        let same = self.ghost.rounds.get(&generation) == Some(&launch.assignment.round);
        let named = launch.assignment.round.members.iter().any(|m| m.uid.as_deref() == Some(uid));
        self.demand(ran && same && named, Rule::StartsByOrder, || format!("{uid} starts {launch:?}"));
        self.check_rank(uid, launch);
        let runs = self.containers.get(uid).and_then(Container::runs);
        self.demand(runs.is_none(), Rule::OneGroup, || format!("{uid} starts {generation} beside {runs:?}"));
    }

    /// Members of the round that go on since the run began have other ranks.
    fn check_rank(&mut self, uid: &str, launch: &Launch) {
        let Some(native) = launch.native().filter(|n| n.alone) else { return };
        let peers = launch.assignment.round.members.iter().filter_map(|m| m.uid.as_ref()).filter(|m| *m != uid);
        let same = |p: &Process| p.run == Some(native.run) && p.rank == launch.rank && !p.over;
        let mut runs = peers.filter(|m| self.containers.get(*m).and_then(|c| c.process.as_ref()).is_some_and(same));
        let other = runs.next().cloned();
        self.demand(other.is_none(), Rule::OneRank, || {
            format!("{uid} starts with the rank {} of {}", launch.rank, other.unwrap_or_default())
        });
    }

    /// What runs goes on in a round of the same run that names it.
    pub(crate) fn check_going_on(&mut self, uid: &str, generation: u64) {
        let run = self.containers.get(uid).and_then(|c| c.process.as_ref()).and_then(|p| p.run);
        let same = run.is_some() && run == self.ghost.run_of(generation) && self.ghost.run.contains(&generation);
        let named = self.ghost.members_of(generation).is_some_and(|all| all.iter().any(|m| m == uid));
        self.demand(same && named, Rule::StartsByOrder, || format!("{uid} of run {run:?} goes on in {generation}"));
    }

    /// What an agent tells of a checkpoint is on the volume.
    pub(crate) fn check_claim(&mut self, uid: &str, claim: Option<Checkpoint>) {
        let Some(claim) = claim else { return };
        let saved = self.training.saved.map_or(0, |(_, step)| step);
        let what = || format!("{uid} tells of step {}, and {saved} is the newest on the volume", claim.step);
        self.demand(claim.step <= saved, Rule::CheckpointKept, what);
        self.training.acknowledged = self.training.acknowledged.max(claim.step);
    }

    /// Replica `at` stores a state.
    pub(crate) fn check_state(&mut self, at: usize, state: &JobState) {
        let spec = self.api.spec.clone();
        let target = state.target;
        let bounded = target == 0 || (spec.min..=spec.max).contains(&target);
        self.demand(bounded, Rule::LegalSize, || format!("target {target} of {} to {}", spec.min, spec.max));
        if let Some(end) = self.ghost.end {
            let same = state.phase == end;
            self.demand(same, Rule::Terminal, || format!("{end:?} became {:?}", state.phase));
        } else if state.phase.is_terminal() {
            self.note(|_| format!("the job has ended: {:?} ({:?})", state.phase, state.message));
            self.ghost.end = Some(state.phase);
        }
        self.check_budget(state);
        // Deadlines count from the decision, which is stored a little later: at once, or when a write that failed is tried
        // again.
        let decided = self.replicas[at].mind.as_ref().and_then(|m| m.suspended).unwrap_or(self.clock_of(at));
        self.ghost.suspended = match (state.phase, self.ghost.suspended) {
            (Phase::Suspended, since) => since.or(Some(decided)),
            _ => None,
        };
        if state.round.is_none() && self.has_waited_for_suspension(at) {
            self.ghost.lost.extend(self.api.pods.keys().cloned());
        }
    }

    fn clock_of(&self, at: usize) -> Time {
        Time(self.now.saturating_add_signed(self.replicas[at].skew))
    }

    /// With an etcd that is away, pods of a suspended job do not stay for ever. The moment is in the status, so that clocks of
    /// replicas count: of the one that decided, and of the one that acts.
    fn has_waited_for_suspension(&self, at: usize) -> bool {
        let patience = LOSS_GRACE_MS + STOP_MARGIN;
        self.ghost.suspended.is_some_and(|since| self.clock_of(at).0 >= since.0 + patience)
    }

    /// A replica names those who are given up. `before`: whom it had named already.
    pub(crate) fn check_victims(&mut self, at: usize, before: &[Victim]) {
        let Some(mind) = &self.replicas[at].mind else { return };
        // Another master takes over from one whose node is to go.
        let new = mind.state.victims.iter().filter(|v| !before.contains(v) && !v.reason.contains("announced"));
        let may_go = |index: u32| self.api.spec.may_give_up(index);
        let master = new.filter(|v| !may_go(v.index)).find(|v| mind.knows_of_training(&v.uid)).cloned();
        let kept =
            |uid: &str| self.api.pods.get(uid).is_some_and(|p| p.deleting.is_none() && !p.is_ended() && !p.disrupted);
        if let Some(victim) = master.filter(|v| kept(&v.uid)) {
            self.demand(false, Rule::MasterStays, || format!("{victim:?}"));
        }
    }

    pub(crate) fn check_creation(&mut self, new: &NewPod) {
        let ended = self.ghost.has_ended();
        self.demand(!ended, Rule::Terminal, || format!("{new:?} after the end"));
        self.demand(new.mode == RoundMode::Agent, Rule::Undisturbed, || format!("{new:?} has no agent"));
    }

    /// A replica deletes a pod.
    pub(crate) fn check_deletion(&mut self, at: usize, uid: &str) {
        let Some(pod) = self.api.pods.get(uid).cloned() else { return };
        let free = pod.deleting.is_some() || pod.is_ended() || pod.disrupted || self.ghost.has_ended();
        let known = self.replicas[at].mind.as_ref().is_none_or(|m| m.takes_for_reached(uid));
        let reached = self.reaches_gateway(uid) && self.is_heard(uid) && self.is_linked(uid) && known;
        let runs = self.containers.get(uid).and_then(|c| c.process.as_ref()).filter(|p| !p.over).map(|p| p.round);
        let Some(generation) = runs.filter(|_| reached && !free) else { return };
        // It was given up already, and has not been taken in again.
        let lost = self.ghost.lost.contains(uid);
        // Of a round that neither the status nor etcd knows any more, nothing can be told to anybody.
        let kept = self.etcd.kept.assignment.as_ref().is_some_and(|a| a.round.generation >= generation);
        let forgotten = self.ghost.budget.forgot && !kept;
        let waited = self.has_waited_for_suspension(at);
        let over = self.ghost.is_stopped(generation, self.now) || lost || forgotten || waited;
        let newest = self.ghost.newest();
        self.demand(over, Rule::DeletedAfterStop, || {
            format!("{uid} (index {}) runs round {generation} when it is deleted; the newest is {newest}", pod.index)
        });
    }
}
