//! Training containers: the real agent, and processes that take their time to stop.

use std::time::Duration;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::RestartPolicy;
use eto_engine::observe::Pod;
use eto_engine::time::Time;
use eto_membership::agent::{Agent, Command, Event, Exit, Identity};
use eto_membership::{Assignment, MemberRecord, MemberState, SUSPECT_AFTER_MS, neighbours};

use super::world::AgentWorld;
use crate::common::secs;

/// A training container: the agent in it, and what its processes do.
pub(crate) struct Container {
    pub(crate) agent: Agent,
    pub(super) incarnation: u32,
    /// The round whose processes run.
    pub(crate) runs: Option<u64>,
    /// The one that they were started for.
    launched: u64,
    /// When they will have stopped.
    pub(super) stops: Option<Time>,
    pub(super) heard: Time,
    pub(super) ended: Option<i32>,
    /// What its processes write to stderr when they fail.
    pub(crate) lines: String,
    /// It is for want of memory that they fail, and the kubelet does not know.
    pub(crate) out_of_memory: bool,
}

impl AgentWorld {
    /// One container: its agent hears, its processes stop, its end is the kubelet's.
    pub(super) fn live(&mut self, uid: &str, told: bool) {
        let now = self.now;
        let Some(at) = self.pods.iter().position(|p| p.uid == *uid) else { return };
        let (off, deleting) = (self.is_off(&self.pods[at]), self.pods[at].deleting.is_some());
        let reached = self.gateway && told && !off && !self.cut.contains(uid);
        let stop_time = self.stop_time;
        let Some(container) = self.containers.get_mut(uid).filter(|c| c.ended.is_none() && !off) else {
            self.suspect(uid);
            return;
        };
        let mut commands = Vec::new();
        if deleting {
            commands.extend(container.agent.step(Event::Signalled, now.0));
        }
        if let Some(assignment) = self.group.assignment.as_ref().filter(|_| reached) {
            commands.extend(container.agent.step(Event::Assigned(Box::new(assignment.clone())), now.0));
        }
        commands.extend(container.agent.step(Event::Tick, now.0));
        let mut started = Vec::new();
        loop {
            let gone = container.obey(&commands, now, stop_time, &mut started);
            if gone.or_else(|| container.stopped(now)).is_none() {
                break;
            }
            commands = container.end_group(Exit::Signal(15), now);
        }
        let index = self.pods[at].index;
        self.starts.extend(started.iter().map(|g| (index, *g)));
        if let Some(container) = self.containers.get_mut(uid).filter(|_| reached) {
            container.heard = now;
            let mut report = container.agent.report();
            if matches!(report.state, MemberState::Exited { .. }) {
                report.last_lines.clone_from(&container.lines);
                report.out_of_memory = container.out_of_memory;
            }
            let beside = |a: &Assignment| {
                let rank = container.agent.rank().filter(|_| container.agent.is_ready());
                let beside = rank.map_or(Vec::new(), |rank| neighbours(rank, a.round.members.len()));
                beside.into_iter().filter_map(|i| a.round.members[i].uid.clone()).collect::<Vec<_>>()
            };
            report.out_of_reach = container.agent.assignment().map(beside).unwrap_or_default();
            report.out_of_reach.retain(|uid| self.out_of_reach.contains(uid));
            let record = MemberRecord {
                pod: self.pods[at].name.clone(),
                report,
                joined_ms: self.group.members.get(uid).map_or(now.0, |r| r.joined_ms),
                suspected: false,
            };
            self.group.members.insert(uid.to_owned(), record);
        }
        self.suspect(uid);
        self.finish(at);
    }

    fn suspect(&mut self, uid: &str) {
        let (now, gateway) = (self.now, self.gateway);
        let Some(container) = self.containers.get(uid).filter(|_| gateway) else { return };
        if let Some(record) = self.group.members.get_mut(uid) {
            record.suspected = now.since(container.heard) >= Duration::from_millis(SUSPECT_AFTER_MS);
        }
    }

    /// What the kubelet makes of an agent that has ended.
    fn finish(&mut self, at: usize) {
        let pod = &mut self.pods[at];
        let Some(container) = self.containers.get_mut(&pod.uid) else { return };
        let Some(code) = container.ended else { return };
        pod.ready = Readiness::NotReady;
        if code == 0 && pod.deleting.is_none() {
            (pod.phase, pod.exit_code) = (WorkerPhase::Succeeded, Some(0));
        } else if pod.deleting.is_none() && self.job.restart == RestartPolicy::OnFailure {
            pod.restarts += 1;
            container.restart(pod, None);
        } else {
            (pod.phase, pod.exit_code) = (WorkerPhase::Failed, Some(code));
        }
    }

    /// The processes of a pod end by themselves.
    pub(crate) fn exit(&mut self, at: usize, code: i32) {
        let now = self.now;
        let Some(uid) = self.pick(at).map(|p| p.uid.clone()) else { return };
        let Some(at) = self.pods.iter().position(|p| p.uid == uid) else { return };
        let off = self.is_off(&self.pods[at]);
        let Some(container) = self.containers.get_mut(&uid).filter(|c| c.ended.is_none() && !off) else { return };
        if container.runs.is_none() || container.stops.is_some() {
            return;
        }
        let commands = container.end_group(Exit::Code(code), now);
        let mut started = Vec::new();
        container.obey(&commands, now, secs(1), &mut started);
        assert!(started.is_empty(), "nothing starts again in its round");
        self.finish(at);
    }

    /// The container runs out of memory and is started again.
    pub(crate) fn kill_container(&mut self, at: usize) {
        let Some(uid) = self.pick(at).map(|p| p.uid.clone()) else { return };
        let restarts = self.job.restart == RestartPolicy::OnFailure;
        let Some(pod) = self.pods.iter_mut().find(|p| p.uid == uid && !p.is_ended() && p.deleting.is_none()) else {
            return;
        };
        let Some(container) = self.containers.get_mut(&uid).filter(|c| c.ended.is_none()) else { return };
        if restarts {
            pod.restarts += 1;
            let lost = container.runs;
            container.restart(pod, lost);
        } else {
            (pod.phase, pod.exit_code) = (WorkerPhase::Failed, Some(137));
            (container.runs, container.ended) = (None, Some(137));
        }
    }
}

fn identity(pod: &Pod, incarnation: u32, native: bool, lost: Option<u64>) -> Identity {
    Identity {
        pod_uid: pod.uid.clone(),
        address: format!("10.0.0.{}", pod.index),
        processes: 1,
        version: "test".into(),
        incarnation: incarnation.to_string(),
        stop_grace_ms: 28_000,
        stop_signal: 0,
        native,
        lost_generation: lost,
    }
}

impl Container {
    pub(super) fn new(pod: &Pod, native: bool, now: Time) -> Self {
        let agent = Agent::new(identity(pod, 0, native, None));
        let (runs, stops, ended, lines) = (None, None, None, String::new());
        let out_of_memory = false;
        Container { agent, incarnation: 0, runs, launched: 0, stops, heard: now, ended, lines, out_of_memory }
    }

    fn restart(&mut self, pod: &Pod, lost: Option<u64>) {
        self.incarnation += 1;
        self.agent = Agent::new(identity(pod, self.incarnation, self.agent.report().native, lost));
        (self.runs, self.stops, self.ended) = (None, None, None);
    }

    /// Carries commands out. Gives the round whose processes were killed.
    fn obey(&mut self, commands: &[Command], now: Time, stop: Duration, started: &mut Vec<u64>) -> Option<u64> {
        let mut killed = None;
        for command in commands {
            match command {
                Command::Start(launch) => {
                    assert_eq!(self.runs, None, "one group at a time");
                    self.runs = Some(launch.assignment.round.generation);
                    self.launched = launch.generation();
                    started.push(launch.assignment.round.generation);
                }
                Command::Terminate => self.stops = self.runs.map(|_| self.stops.unwrap_or(now.plus(stop))),
                Command::GoOn { generation } => {
                    assert!(self.runs.is_some_and(|before| before < *generation) && self.stops.is_none());
                    self.runs = Some(*generation);
                }
                Command::Kill => killed = self.runs,
                Command::End { code } => {
                    assert_eq!(self.runs, None);
                    self.ended = Some(*code);
                }
                Command::Report | Command::Refuse(_) => {}
            }
        }
        killed
    }

    fn stopped(&self, now: Time) -> Option<u64> {
        self.runs.filter(|_| self.stops.is_some_and(|t| t <= now))
    }

    fn end_group(&mut self, exit: Exit, now: Time) -> Vec<Command> {
        let generation = self.launched;
        (self.runs, self.stops) = (None, None);
        let mut out = self.agent.step(Event::ProcessEnded { generation, exit, main: true, left: 0 }, now.0);
        out.retain(|c| *c != Command::Kill);
        out.extend(self.agent.step(Event::GroupGone { generation }, now.0));
        out
    }
}
