//! Training processes: they step together or not at all, and write checkpoints that take their time.

use std::collections::{BTreeMap, BTreeSet};

use eto_engine::time::millis;
use eto_membership::Progress;
use eto_membership::agent::{Event, Exit, Launch};

use crate::check::Rule;
use crate::defects::Defect;
use crate::scenario::Scenario;
use crate::world::{What, World};

/// How much earlier than it was made the last step may have been told, in milliseconds.
const LATE: u64 = 30_000;

/// The process of one member.
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// The round that it was started for.
    pub(crate) generation: u64,
    /// The one that it works for: a later one of the same run, or the same.
    pub(crate) round: u64,
    /// The run that it is a part of.
    pub(crate) run: Option<u64>,
    /// It waits for no peers, and they not for it.
    pub(crate) alone: bool,
    pub(crate) rank: usize,
    /// Steps done, from the beginning of the training.
    pub(crate) step: u64,
    /// It has imported its libraries.
    up_at: u64,
    /// It was asked to stop.
    pub(crate) stopping: bool,
    /// It has ended; what it left behind has not.
    pub(crate) over: bool,
    /// It has made a step with its peers.
    pub(crate) met: bool,
    /// It does nothing any more, and does not end.
    pub(crate) hung: bool,
}

impl Process {
    /// The round that its script takes itself to be in (`ETO_ROUND`).
    fn told_as(&self) -> u64 {
        self.run.unwrap_or(self.generation)
    }
}

/// What all rounds of a job share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Training {
    /// The newest complete checkpoint on the volume: generation and step.
    pub(crate) saved: Option<(u64, u64)>,
    /// Processes of an earlier generation than this write no checkpoint any more.
    fence: u64,
    /// The highest step of a checkpoint that an agent has taken word of.
    pub(crate) acknowledged: u64,
    goal: Option<u64>,
    /// Rounds that are stepped.
    stepped: BTreeSet<u64>,
    /// Rounds in which a member missed its peers.
    pub(crate) missed: BTreeSet<u64>,
    /// When a step was made or tried first in each round that stands.
    stands: BTreeMap<u64, u64>,
}

impl Training {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Training { goal: scenario.goal, ..Training::default() }
    }
}

impl World {
    /// A process starts, and goes on from the newest checkpoint.
    pub(crate) fn start_process(&mut self, uid: &str, life: u64, launch: &Launch) {
        let generation = launch.generation();
        let resumed = self.training.saved.map_or(0, |(_, step)| step);
        let acknowledged = self.training.acknowledged;
        self.demand(resumed >= acknowledged, Rule::CheckpointKept, || {
            format!("{uid} resumes at step {resumed} in round {generation}; {acknowledged} was acknowledged")
        });
        let rank = launch.rank;
        self.note(|_| format!("{uid} starts as rank {rank} of round {generation} at step {resumed}"));
        let (run, alone) = (launch.native().map(|n| n.run), launch.native().is_some_and(|n| n.alone));
        self.training.fence = self.training.fence.max(run.unwrap_or(generation));
        let up_at = self.now + self.random.between(100, self.scenario.import_time);
        let (stopping, over, met, hung) = (false, false, false, false);
        let (round, step) = (generation, resumed);
        let process = Process { generation, round, run, alone, rank, step, up_at, stopping, over, met, hung };
        if let Some(container) = self.containers.get_mut(uid).filter(|c| c.life == life) {
            container.process = Some(process);
        }
        if self.training.stepped.insert(generation) {
            self.after(500, What::Train { generation });
        }
    }

    /// torchrun has other members from now on: it starts the script again, which goes on from the newest checkpoint. Who is
    /// alone has nothing to start again.
    pub(crate) fn go_on(&mut self, uid: &str, generation: u64) {
        let resumed = self.training.saved.map_or(0, |(_, step)| step);
        let rank = self.ghost.members_of(generation).and_then(|all| all.iter().position(|m| m == uid));
        let up_at = self.now + self.random.between(100, self.scenario.import_time);
        self.note(|_| format!("{uid} goes on in round {generation} at step {resumed}"));
        let process = self.containers.get_mut(uid).and_then(|c| c.process.as_mut());
        if let Some(process) = process {
            if process.alone {
                process.round = generation;
            } else {
                (process.round, process.step, process.up_at) = (generation, resumed, up_at);
                process.hung = false;
                process.rank = rank.unwrap_or(process.rank);
            }
        }
        if self.training.stepped.insert(generation) {
            self.after(500, What::Train { generation });
        }
    }

    /// The members of a round make a step, if all of them are there.
    pub(crate) fn train(&mut self, generation: u64) {
        let there: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, c)| c.process.as_ref().is_some_and(|p| p.round == generation && !p.over))
            .map(|(uid, _)| uid.clone())
            .collect();
        if there.is_empty() && generation < self.ghost.newest() {
            return;
        }
        let delay = self.scenario.step_time;
        self.after(delay, What::Train { generation });
        if self.stands(&there, generation) {
            return;
        }
        let Some(mut members) = self.ghost.members_of(generation) else { return };
        let able = |uid: &String| {
            let Some(container) = self.containers.get(uid) else { return false };
            let linked = self.has_network(uid);
            let at_work = |p: &Process| p.round == generation && !p.over && !p.stopping && p.up_at <= self.now;
            linked && container.process.as_ref().is_some_and(at_work)
        };
        let alone =
            |uid: &String| self.containers.get(uid).is_some_and(|c| c.process.as_ref().is_some_and(|p| p.alone));
        if there.iter().any(alone) {
            members.retain(able);
            self.make_step(&members);
        } else if members.iter().all(able) {
            self.training.stands.remove(&generation);
            self.make_step(&members);
        } else {
            self.miss_peers(&there, generation);
        }
    }

    /// One of them does nothing any more: the others wait for it, whatever becomes of their peers. A round that makes no step
    /// for so long, for whatever reason, looks like one that hangs.
    fn stands(&mut self, there: &[String], generation: u64) -> bool {
        let (now, timeout) = (self.now, self.api.spec.elasticity.hang_timeout.map(millis));
        let since = self.training.stands.entry(generation).or_insert(now);
        if timeout.is_some_and(|timeout| now.saturating_sub(*since) + LATE >= timeout) {
            *since = now;
            self.ghost.looks_like_a_failure();
        }
        let hangs = |uid: &String| self.containers.get(uid).and_then(|c| c.process.as_ref()).is_some_and(|p| p.hung);
        there.iter().any(hangs)
    }

    fn make_step(&mut self, members: &[String]) {
        self.counts.steps += 1;
        let every = self.scenario.checkpoint_every;
        for uid in members {
            let Some(container) = self.containers.get_mut(uid) else { continue };
            let life = container.life;
            let Some(process) = container.process.as_mut() else { continue };
            process.step += 1;
            process.met = true;
            let (step, rank) = (process.step, process.rank);
            let done = self.training.goal.is_some_and(|goal| step >= goal);
            let (launched, told) = (process.generation, process.told_as());
            self.drive(uid, Event::ProgressTold(Progress { generation: told, step, ..Progress::default() }));
            if done {
                let exit = Exit::Code(0);
                let delay = self.random.between(5, 500);
                self.after(delay, What::Ends { uid: uid.clone(), life, generation: launched, exit });
            } else if rank == 0 && every > 0 && step.is_multiple_of(every) {
                if self.defect == Some(Defect::ClaimsTooEarly) {
                    self.drive(uid, Event::CheckpointTold { generation: Some(told), step });
                }
                let most = self.scenario.save_time;
                let delay = self.random.between(50, most);
                self.after(delay, What::Saved { uid: uid.clone(), life, generation: launched, step, exit: false });
            }
        }
    }

    /// A peer is gone: those who have trained with it fail, or wait for ever.
    fn miss_peers(&mut self, there: &[String], generation: u64) {
        let fails = if self.scenario.native { self.has_lost_its_store(generation) } else { self.scenario.peers_fail };
        if !fails {
            return;
        }
        let mut failed = false;
        for uid in there {
            let Some(container) = self.containers.get(uid) else { continue };
            let life = container.life;
            let process = container.process.as_ref().filter(|p| p.met && !p.stopping);
            if let Some(generation) = process.map(|p| p.generation) {
                let delay = self.random.between(10, 2_000);
                let exit = Exit::Code(1);
                self.after(delay, What::Ends { uid: uid.clone(), life, generation, exit });
                failed = true;
            }
        }
        if failed && self.training.missed.insert(generation) {
            self.ghost.looks_like_a_failure();
        }
    }

    /// The member that serves the store of a run is not there any more: `torchrun` ends wherever it has met the others. It waits
    /// for all others.
    fn has_lost_its_store(&self, generation: u64) -> bool {
        let Some(first) = self.ghost.members_of(generation).and_then(|all| all.first().cloned()) else { return false };
        let Some(container) = self.containers.get(&first) else { return true };
        let linked = self.has_network(&first);
        let run = self.ghost.run_of(generation);
        let serves = container.process.as_ref().is_some_and(|p| p.run == run && !p.over && !p.stopping);
        !linked || !serves
    }

    /// A checkpoint is complete, if its process has lived to see it. One of a round that is over is refused, as the
    /// helper for scripts does.
    pub(crate) fn saved(&mut self, uid: &str, life: u64, generation: u64, step: u64, exit: bool) {
        let fence = self.training.fence;
        let Some(container) = self.alive(uid, life) else { return };
        let process = container.process.as_ref().filter(|p| p.generation == generation && !p.over);
        let Some(told) = process.map(Process::told_as) else { return };
        let kept = told >= fence;
        if kept {
            let newest = self.training.saved.map_or(0, |(_, step)| step);
            self.training.saved = Some((told, newest.max(step)));
            self.note(|_| format!("{uid} has written a checkpoint of step {step} in round {generation}"));
            self.drive(uid, Event::CheckpointTold { generation: Some(told), step });
        }
        if exit {
            let exit = if kept { Exit::Code(143) } else { Exit::Code(1) };
            self.process_ends(uid, life, generation, exit);
        }
    }
}
