//! Training processes: they step together or not at all, and write checkpoints that take their time.

use std::collections::BTreeSet;

use eto_membership::Progress;
use eto_membership::agent::{Event, Exit, Launch};

use crate::check::Rule;
use crate::defects::Defect;
use crate::scenario::Scenario;
use crate::world::{What, World};

/// The process of one member.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) generation: u64,
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
    met: bool,
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
        self.training.fence = self.training.fence.max(generation);
        let up_at = self.now + self.random.between(100, self.scenario.import_time);
        let process = Process { generation, rank, step: resumed, up_at, stopping: false, over: false, met: false };
        if let Some(container) = self.containers.get_mut(uid).filter(|c| c.life == life) {
            container.process = Some(process);
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
            .filter(|(_, c)| c.process.as_ref().is_some_and(|p| p.generation == generation && !p.over))
            .map(|(uid, _)| uid.clone())
            .collect();
        if there.is_empty() && generation < self.ghost.newest() {
            return;
        }
        let delay = self.scenario.step_time;
        self.after(delay, What::Train { generation });
        let Some(members) = self.ghost.members_of(generation) else { return };
        let able = |uid: &String| {
            let Some(container) = self.containers.get(uid) else { return false };
            let linked = self.nodes.get(&container.node).is_some_and(|n| n.on && n.linked);
            let at_work = |p: &Process| p.generation == generation && !p.over && !p.stopping && p.up_at <= self.now;
            linked && container.process.as_ref().is_some_and(at_work)
        };
        if members.iter().all(able) {
            self.make_step(&members, generation);
        } else {
            self.miss_peers(&there, generation);
        }
    }

    fn make_step(&mut self, members: &[String], generation: u64) {
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
            self.drive(uid, Event::ProgressTold(Progress { generation, step, ..Progress::default() }));
            if done {
                let exit = Exit::Code(0);
                let delay = self.random.between(5, 500);
                self.after(delay, What::Ends { uid: uid.clone(), life, generation, exit });
            } else if rank == 0 && every > 0 && step.is_multiple_of(every) {
                if self.defect == Some(Defect::ClaimsTooEarly) {
                    self.drive(uid, Event::CheckpointTold { generation: Some(generation), step });
                }
                let most = self.scenario.save_time;
                let delay = self.random.between(50, most);
                self.after(delay, What::Saved { uid: uid.clone(), life, generation, step, exit: false });
            }
        }
    }

    /// A peer is gone: those who have trained with it fail, or wait for ever.
    fn miss_peers(&mut self, there: &[String], generation: u64) {
        if !self.scenario.peers_fail {
            return;
        }
        for uid in there {
            let Some(container) = self.containers.get(uid) else { continue };
            let life = container.life;
            if container.process.as_ref().is_some_and(|p| p.met && !p.stopping) {
                let delay = self.random.between(10, 2_000);
                let exit = Exit::Code(1);
                self.after(delay, What::Ends { uid: uid.clone(), life, generation, exit });
                if self.training.missed.insert(generation) {
                    self.ghost.looks_like_a_failure();
                }
            }
        }
    }

    /// A checkpoint is complete, if its process has lived to see it. One of a round that is over is refused, as the
    /// helper for scripts does.
    pub(crate) fn saved(&mut self, uid: &str, life: u64, generation: u64, step: u64, exit: bool) {
        let fence = self.training.fence;
        let Some(container) = self.alive(uid, life) else { return };
        if container.process.as_ref().is_none_or(|p| p.generation != generation || p.over) {
            return;
        }
        let kept = generation >= fence;
        if kept {
            let newest = self.training.saved.map_or(0, |(_, step)| step);
            self.training.saved = Some((generation, newest.max(step)));
            self.note(|_| format!("{uid} has written a checkpoint of step {step} in round {generation}"));
            self.drive(uid, Event::CheckpointTold { generation: Some(generation), step });
        }
        if exit {
            let exit = if kept { Exit::Code(143) } else { Exit::Code(1) };
            self.process_ends(uid, life, generation, exit);
        }
    }
}
