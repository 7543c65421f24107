//! What an agent does, as a pure function: a state and an event give commands.
//!
//! The agent is the first process of the training container, around the user's command. It starts the user's
//! processes for a round that names its pod, stops them when another round comes, and tells what became of them. What
//! touches processes, files and sockets is the adapter's (`eto-agent`); the simulation runs this very machine.
//!
//! The rules, each a property of the tests:
//! - One process group at a time: the next is started only after [`Event::GroupGone`] of the last.
//! - A generation is started at most once, only by [`Order::Run`], only if it names this pod's UID, and never after a
//!   later one was seen. Within a generation orders only move forward.
//! - What was asked to stop is killed at its deadline, whatever it does, and again every second until it is gone.
//! - Processes go on in a later round only where that round is of the same run ([`crate::Native`]), names this pod, and
//!   nobody has asked them to stop. That counts as the start of that generation.
//! - *Stopped* is not *checkpointed*: a checkpoint is what the script told ([`Event::CheckpointTold`]), or an exit code
//!   143 that the script itself gave after it was asked to stop. Death by SIGTERM is no checkpoint.

mod command;
mod exit;
mod launch;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod stories;
mod words;

pub use command::{CommandKind, beginning, nproc_per_node};
pub use exit::{DRAINED, Exit};
pub use launch::Launch;
pub use words::{Command, Event, Identity, Refusal};

use crate::{Assignment, Checkpoint, LOSS_GRACE_MS, MemberState, Order, Progress, Refused, Report};
use exit::Exits;

/// Pause between two SIGKILLs while something is left, in milliseconds.
pub const KILL_AGAIN_MS: u64 = 1_000;

/// Processes started for a round that are not all gone.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    /// The round that they work for.
    generation: u64,
    /// The one that they were started for: an earlier one of the same run, or the same.
    launched: u64,
    /// See [`crate::Native::run`].
    run: Option<u64>,
    /// Somebody wants it to stop: a new round, the job's end, the pod's own SIGTERM. What comes then is no failure.
    ordered: bool,
    /// It ended, or one of it failed, before anybody asked: that stands, though it is not all gone yet.
    by_itself: bool,
    /// When it is killed (again); `None` = nobody asked it to stop.
    kill_at_ms: Option<u64>,
    /// It has told a checkpoint since it was asked to stop.
    told: bool,
    exits: Exits,
}

/// The state of an agent. See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    me: Identity,
    seen: Option<Assignment>,
    group: Option<Group>,
    /// Highest generation that processes were ever started for.
    started: u64,
    /// The last group that ended by itself, until the next start: generation and code.
    ended: Option<(u64, i32)>,
    last_code: Option<i32>,
    checkpoint: Option<Checkpoint>,
    progress: Option<Progress>,
    leaving: bool,
    done: bool,
}

impl Agent {
    /// A fresh agent: nothing runs and nothing was told.
    pub fn new(me: Identity) -> Agent {
        let lost = me.lost_generation;
        Agent {
            me,
            seen: None,
            group: None,
            started: lost.unwrap_or(0),
            // The usual reason why an agent is gone and its pod is not: the container ran out of memory.
            ended: lost.map(|generation| (generation, Exit::Signal(9).code())),
            last_code: None,
            checkpoint: None,
            progress: None,
            leaving: false,
            done: false,
        }
    }

    /// Takes an event at `now_ms` (milliseconds since the Unix epoch, never going back) and says what to do.
    pub fn step(&mut self, event: Event, now_ms: u64) -> Vec<Command> {
        if self.done {
            return match event {
                Event::Assigned(_) | Event::CheckpointTold { .. } | Event::ProgressTold(_) => {
                    vec![Command::Refuse(Refusal::Leaving)]
                }
                _ => Vec::new(),
            };
        }
        let mut out = Vec::new();
        match event {
            Event::Assigned(assignment) => self.assigned(*assignment, now_ms, &mut out),
            Event::ProcessEnded { generation, exit, main, left } => {
                self.process_ended(generation, exit, main, left, now_ms, &mut out);
            }
            Event::GroupGone { generation } => self.group_gone(generation, now_ms, &mut out),
            Event::Signalled => self.signalled(now_ms, &mut out),
            Event::CheckpointTold { generation, step } => self.checkpoint_told(generation, step, now_ms, &mut out),
            Event::ProgressTold(progress) => self.progress_told(progress, now_ms, &mut out),
            Event::Tick => {}
        }
        if let Some(group) = &mut self.group
            && group.kill_at_ms.is_some_and(|at| at <= now_ms)
        {
            group.kill_at_ms = Some(now_ms.saturating_add(KILL_AGAIN_MS));
            out.push(Command::Kill);
        }
        out
    }

    /// When [`Event::Tick`] is due, in milliseconds since the Unix epoch; `None` = there is nothing to wait for.
    pub fn next_deadline(&self) -> Option<u64> {
        self.group.as_ref().and_then(|g| g.kill_at_ms)
    }

    /// All that the agent tells of itself; the sequence number is the sender's.
    pub fn report(&self) -> Report {
        Report {
            agent: self.me.version.clone(),
            incarnation: self.me.incarnation.clone(),
            sequence: 0,
            address: self.me.address.clone(),
            processes: self.me.processes.max(1),
            generation: self.generation(),
            state: self.state(),
            checkpoint: self.checkpoint,
            progress: self.progress,
            native: self.me.native,
            alone: true,
            leaving: self.leaving,
            last_lines: String::new(),
            out_of_memory: false,
            step_work_us: None,
            out_of_reach: Vec::new(),
        }
    }

    /// The newest generation seen; 0 = none.
    pub fn generation(&self) -> u64 {
        self.seen.as_ref().map_or(0, |a| a.round.generation)
    }

    /// The number of the round in force as processes know it (`ETO_ROUND`): where they go on from one round to the next,
    /// it is the one that the run began with.
    pub fn round_of_processes(&self) -> u64 {
        self.seen.as_ref().map_or(0, |a| a.native.map_or(a.round.generation, |n| n.run))
    }

    /// The number by which the processes that run know their round; `None` = none run.
    pub fn running_round(&self) -> Option<u64> {
        self.group.as_ref().map(|g| g.run.unwrap_or(g.generation))
    }

    /// The assignment in force.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.seen.as_ref()
    }

    /// What the processes do.
    pub fn state(&self) -> MemberState {
        match (&self.group, self.ended) {
            (Some(group), _) => MemberState::Running { generation: group.generation },
            (None, Some((generation, code))) => MemberState::Exited { generation, code },
            (None, None) => MemberState::Idle,
        }
    }

    /// Processes run and were asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.group.as_ref().is_some_and(|g| g.kill_at_ms.is_some())
    }

    /// The processes of the round in force run, and nobody asked them to stop.
    pub fn is_ready(&self) -> bool {
        self.group.as_ref().is_some_and(|g| g.kill_at_ms.is_none() && g.generation == self.generation())
    }

    /// This pod's rank in the round in force.
    pub fn rank(&self) -> Option<usize> {
        let me = Some(self.me.pod_uid.as_str());
        self.seen.as_ref()?.round.members.iter().position(|m| m.uid.as_deref() == me)
    }

    fn assigned(&mut self, new: Assignment, now_ms: u64, out: &mut Vec<Command>) {
        // Generations begin with 1.
        let refused = match &self.seen {
            Some(seen) => new.may_follow(seen).err(),
            None => (new.round.generation == 0).then_some(Refused::Older { current: 0, offered: 0 }),
        };
        if let Some(refused) = refused {
            out.push(Command::Refuse(Refusal::Round(refused)));
            return;
        }
        if self.seen.as_ref() == Some(&new) {
            return; // told again, as every watch does when it begins
        }
        let (generation, ends, grace_ms) = (new.round.generation, new.order == Order::End, new.grace_ms);
        self.seen = Some(new);
        match &self.group {
            Some(group) if group.generation < generation || ends => {
                if self.may_go_on() {
                    self.go_on_in(generation, out);
                } else {
                    self.stop(grace_ms, now_ms, out);
                }
                out.push(Command::Report);
            }
            Some(_) => out.push(Command::Report),
            None => self.go_on(out),
        }
    }

    /// Whether what runs can work for the round in force as it is.
    fn may_go_on(&self) -> bool {
        let run = self.seen.as_ref().filter(|a| a.order == Order::Run).and_then(|a| a.native).map(|n| n.run);
        let lives = |g: &Group| g.run.is_some() && g.run == run && g.kill_at_ms.is_none();
        self.group.as_ref().is_some_and(lives) && self.rank().is_some() && !self.leaving
    }

    fn go_on_in(&mut self, generation: u64, out: &mut Vec<Command>) {
        if let Some(group) = &mut self.group {
            group.generation = generation;
            self.started = generation;
            out.push(Command::GoOn { generation });
        }
    }

    /// Asks what runs to stop, in `grace_ms` at most. A later wish can only bring the end nearer.
    fn stop(&mut self, grace_ms: u64, now_ms: u64, out: &mut Vec<Command>) {
        let Some(group) = &mut self.group else { return };
        let at = now_ms.saturating_add(grace_ms);
        let asked = group.kill_at_ms.is_some();
        group.ordered |= !group.by_itself;
        group.kill_at_ms = Some(group.kill_at_ms.map_or(at, |before| before.min(at)));
        if !asked {
            out.push(Command::Terminate);
        }
    }

    fn process_ended(&mut self, of: u64, exit: Exit, main: bool, left: u32, now_ms: u64, out: &mut Vec<Command>) {
        let Some(group) = self.group.as_mut().filter(|g| g.launched == of) else { return };
        group.exits.add(exit, main, self.me.stop_signal);
        if !main || group.kill_at_ms.is_some() {
            return;
        }
        if left == 0 {
            // What a script leaves behind when it ends by itself ends with it, as in any container.
            group.by_itself = true;
            group.kill_at_ms = Some(now_ms);
        } else if exit != Exit::Code(0) {
            // One of several has failed: the others would wait for it, some for half an hour.
            group.by_itself = true;
            group.kill_at_ms = Some(now_ms.saturating_add(LOSS_GRACE_MS));
            out.push(Command::Terminate);
        }
    }

    fn group_gone(&mut self, of: u64, now_ms: u64, out: &mut Vec<Command>) {
        let Some(group) = self.group.take_if(|g| g.launched == of) else { return };
        let (of, code) = (group.generation, group.exits.code());
        self.last_code = Some(code);
        if group.ordered && group.exits.is_drained() && !group.told {
            self.drained(of, group.launched, now_ms);
        }
        if !group.ordered || self.leaving {
            self.ended = Some((of, code));
        }
        if !group.ordered && code == 0 {
            self.end(0, out);
        } else {
            self.go_on(out);
        }
    }

    /// The script itself ended with 143: it has written a checkpoint. Which step is in it, only its progress tells.
    fn drained(&mut self, generation: u64, launched: u64, now_ms: u64) {
        let progress = self.progress.filter(|p| p.generation >= launched).map(|p| p.step);
        let before = self.checkpoint.map(|c| c.step);
        let step = progress.max(before).unwrap_or(0);
        if self.checkpoint.is_none_or(|c| (c.generation, c.step) != (generation, step)) {
            self.checkpoint = Some(Checkpoint { generation, step, at_ms: now_ms });
        }
    }

    fn signalled(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        if self.group.is_some() {
            self.stop(self.me.stop_grace_ms, now_ms, out);
            out.push(Command::Report);
        } else {
            self.go_on(out);
        }
    }

    /// Nothing runs: ends, starts or waits, and tells.
    fn go_on(&mut self, out: &mut Vec<Command>) {
        let code = self.ended.map(|(_, code)| code).or(self.last_code);
        if self.leaving {
            // Not 0 where nothing has run: the pod of an idle worker that is stopped has not succeeded.
            self.end(code.unwrap_or(DRAINED), out);
            return;
        }
        match self.seen.as_ref().map(|a| a.order) {
            Some(Order::End) => self.end(code.unwrap_or(0), out),
            Some(Order::Run) => self.start(out),
            Some(Order::Stop) | None => out.push(Command::Report),
        }
    }

    /// Starts the round in force if it names this pod and was not started before.
    fn start(&mut self, out: &mut Vec<Command>) {
        if let (Some(rank), Some(seen)) = (self.rank(), &self.seen)
            && seen.round.generation > self.started
            && seen.keeps_rank(rank)
        {
            let generation = seen.round.generation;
            out.push(Command::Start(Box::new(Launch { assignment: seen.clone(), rank })));
            self.started = generation;
            self.ended = None;
            self.group = Some(Group {
                generation,
                launched: generation,
                run: seen.native.map(|n| n.run),
                ordered: false,
                by_itself: false,
                kill_at_ms: None,
                told: false,
                exits: Exits::default(),
            });
        }
        out.push(Command::Report);
    }

    fn end(&mut self, code: i32, out: &mut Vec<Command>) {
        self.done = true;
        out.extend([Command::Report, Command::End { code }]);
    }

    /// The generation that something was told for, if that is what runs.
    fn told_for(&self, generation: Option<u64>) -> Option<u64> {
        let group = self.group.as_ref()?;
        let known = |told| told == group.generation || Some(told) == group.run;
        generation.is_none_or(known).then_some(group.generation)
    }

    fn checkpoint_told(&mut self, generation: Option<u64>, step: u64, now_ms: u64, out: &mut Vec<Command>) {
        let Some(generation) = self.told_for(generation) else {
            out.push(Command::Refuse(Refusal::OtherRound));
            return;
        };
        if let Some(group) = &mut self.group {
            group.told |= group.kill_at_ms.is_some();
        }
        if self.checkpoint.is_some_and(|c| (c.generation, c.step) == (generation, step)) {
            return; // told twice: by the drain file and the API, say
        }
        self.checkpoint = Some(Checkpoint { generation, step, at_ms: now_ms });
        out.push(Command::Report);
    }

    fn progress_told(&mut self, told: Progress, now_ms: u64, out: &mut Vec<Command>) {
        let Some(generation) = self.told_for(Some(told.generation).filter(|g| *g > 0)) else {
            out.push(Command::Refuse(Refusal::OtherRound));
            return;
        };
        // The first of a round is news: it trains again. Others go with the next heartbeat.
        if self.progress.is_none_or(|p| p.generation != generation) {
            out.push(Command::Report);
        }
        // Another process of this pod waits at the same step for the one that asked for the time.
        let same = self.progress.filter(|p| (p.generation, p.step) == (generation, told.step));
        let next_ms = told.next_ms.or(same.and_then(|p| p.next_ms));
        self.progress = Some(Progress { generation, next_ms, at_ms: now_ms, ..told });
    }
}
