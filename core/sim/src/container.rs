//! Kubelets, containers and the agents in them: the real machine of `eto-membership` and an adapter that lags.

use std::sync::Arc;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::RestartPolicy;
use eto_engine::time::Time;
use eto_membership::agent::{Agent, Command, Event, Exit, Identity};
use eto_membership::{Assignment, HEARTBEAT_MS, Neighbours};

use crate::defects::Defect;
use crate::scenario::OnTerm;
use crate::training::Process;
use crate::world::{What, World};

/// Grace of pods, in milliseconds; the agent's own is a little shorter.
const GRACE: u64 = 30_000;

/// The training container of a pod. It is there as long as its node's kubelet knows of the pod.
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) node: String,
    pub(crate) agent: Agent,
    /// Another after each start.
    pub(crate) life: u64,
    incarnation: u32,
    sequence: u64,
    /// What the agent has started and what is not gone.
    pub(crate) process: Option<Process>,
    /// What the agent notes in the pod's volume: the round that it started last.
    started: Option<u64>,
    /// It can't reach the gateway.
    pub(crate) cut: bool,
    /// Nor its peers.
    pub(crate) isolated: bool,
    pub(crate) beside: Neighbours,
    /// The agent has ended: with this code.
    pub(crate) ended: Option<i32>,
    /// It lost its power and was not started since.
    pub(crate) dark: bool,
    restarts: u32,
    phase: WorkerPhase,
    skew: i64,
    /// Kubelet has begun to stop it.
    pub(crate) signalled: bool,
}

impl Container {
    pub(crate) fn lose_power(&mut self) {
        (self.dark, self.process) = (true, None);
        self.life = 0;
    }

    /// The round that its process works for.
    pub(crate) fn runs(&self) -> Option<u64> {
        self.process.as_ref().map(|p| p.round)
    }

    /// The agent's clock.
    fn clock(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.skew)
    }
}

impl World {
    pub(crate) fn alive(&mut self, uid: &str, life: u64) -> Option<&mut Container> {
        self.containers.get_mut(uid).filter(|c| c.life == life && c.ended.is_none() && !c.dark)
    }

    /// A kubelet starts a pod's container, for the first time or after a power cut.
    pub(crate) fn begin(&mut self, uid: &str) {
        let Some(pod) = self.api.pods.get(uid).cloned() else { return };
        let Some(name) = pod.node.clone() else { return };
        if !self.is_linked(uid) {
            return; // it is begun when the kubelet hears of its pods again
        }
        if pod.deleting.is_some() && self.containers.get(uid).is_none_or(|c| c.dark || c.ended.is_some()) {
            self.containers.remove(uid);
            self.remove_pod(uid);
            return;
        }
        if pod.is_ended() {
            return;
        }
        match self.containers.get(uid) {
            Some(container) if container.dark => {
                // Its processes are gone, and nobody may have noticed why.
                self.ghost.looks_like_a_failure();
                self.restart(uid);
            }
            Some(_) => {}
            None => {
                let skew = self.nodes.get(&name).map_or(0, |n| n.skew);
                let container = Container {
                    node: name,
                    agent: Agent::new(Identity::default()),
                    life: 0,
                    incarnation: 0,
                    sequence: 0,
                    process: None,
                    started: None,
                    cut: false,
                    isolated: false,
                    beside: Neighbours::default(),
                    ended: None,
                    dark: false,
                    restarts: 0,
                    phase: WorkerPhase::Running,
                    skew,
                    signalled: false,
                };
                self.containers.insert(uid.to_owned(), container);
                self.start_agent(uid, pod.index);
            }
        }
    }

    /// The container starts again in its pod.
    pub(crate) fn restart(&mut self, uid: &str) {
        let index = self.api.pods.get(uid).map_or(0, |p| p.index);
        if let Some(container) = self.containers.get_mut(uid) {
            container.restarts += 1;
            self.start_agent(uid, index);
        }
    }

    fn start_agent(&mut self, uid: &str, index: u32) {
        let life = self.new_life();
        let Some(container) = self.containers.get_mut(uid) else { return };
        container.incarnation += 1;
        container.agent = Agent::new(Identity {
            pod_uid: uid.to_owned(),
            address: format!("10.0.0.{index}"),
            processes: 1,
            version: "sim".into(),
            incarnation: container.incarnation.to_string(),
            stop_grace_ms: GRACE - 2_000,
            stop_signal: 0,
            native: self.scenario.native,
            lost_generation: container.started,
        });
        (container.life, container.sequence, container.process) = (life, 0, None);
        (container.ended, container.dark) = (None, false);
        self.note(|_| format!("the agent of {uid} (index {index}) starts"));
        self.sync(uid);
        self.after(1, What::Heartbeat { uid: uid.to_owned(), life });
    }

    /// What the kubelet tells the API server, if it reaches it.
    fn sync(&mut self, uid: &str) {
        if !self.is_linked(uid) {
            return;
        }
        let now = Time(self.now);
        let Some(container) = self.containers.get(uid) else { return };
        let (phase, restarts) = (container.phase, container.restarts);
        let runs = container.ended.is_none() && !container.dark;
        let code = container.ended.filter(|_| phase != WorkerPhase::Running);
        let ready = if runs { Readiness::Ready } else { Readiness::NotReady };
        let Some(pod) = self.api.pods.get(uid) else { return };
        let told = (pod.phase, pod.restarts, pod.exit_code, pod.ready) == (phase, restarts, code, ready);
        if pod.phase == WorkerPhase::Failed || told {
            return;
        }
        self.change_pod(uid, |p| {
            if p.ready != ready {
                (p.ready, p.ready_changed) = (ready, Some(now));
            }
            p.started.get_or_insert(now);
            (p.phase, p.restarts, p.exit_code) = (phase, restarts, code);
        });
    }

    pub(crate) fn sync_all(&mut self) {
        let uids: Vec<String> = self.containers.keys().cloned().collect();
        for uid in uids {
            self.sync(&uid);
            if self.api.pods.get(&uid).is_none_or(|p| p.deleting.is_some() && p.is_ended()) && self.is_linked(&uid) {
                self.drop_container(&uid);
                self.remove_pod(&uid);
            }
        }
    }

    /// The kubelet ends what is left of a pod that is gone.
    pub(crate) fn drop_container(&mut self, uid: &str) {
        self.containers.remove(uid);
    }

    /// SIGTERM, and SIGKILL when the grace has passed.
    pub(crate) fn signal(&mut self, uid: &str, life: u64) {
        if !self.is_linked(uid) {
            return; // it is told again when the node is back
        }
        let Some(container) = self.containers.get_mut(uid).filter(|c| c.life == life || c.dark) else { return };
        if container.ended.is_some() || container.dark {
            self.drop_container(uid);
            self.remove_pod(uid);
            return;
        }
        if std::mem::replace(&mut container.signalled, true) {
            return;
        }
        self.note(|_| format!("the agent of {uid} gets SIGTERM"));
        self.after(GRACE, What::GraceOver { uid: uid.to_owned(), life });
        self.drive(uid, Event::Signalled);
    }

    pub(crate) fn grace_over(&mut self, uid: &str, life: u64) {
        if self.containers.get(uid).is_none_or(|c| c.life != life) {
            return;
        }
        if self.is_linked(uid) {
            self.drop_container(uid);
            self.remove_pod(uid);
        } else {
            self.after(5_000, What::GraceOver { uid: uid.to_owned(), life });
        }
    }

    pub(crate) fn heartbeat(&mut self, uid: &str, life: u64) {
        if self.alive(uid, life).is_none() {
            return;
        }
        self.after(HEARTBEAT_MS, What::Heartbeat { uid: uid.to_owned(), life });
        self.look_beside(uid);
        self.send_report(uid);
        self.watch_again(uid);
    }

    pub(crate) fn told(&mut self, uid: &str, life: u64, assignment: &Arc<Assignment>) {
        if self.alive(uid, life).is_none() || !self.reaches_gateway(uid) {
            return;
        }
        self.drive(uid, Event::Assigned(Box::new((**assignment).clone())));
    }

    pub(crate) fn tick(&mut self, uid: &str, life: u64) {
        let now = self.now;
        let Some(container) = self.alive(uid, life) else { return };
        let due = container.agent.next_deadline().is_some_and(|at| at <= container.clock(now));
        if due {
            self.drive(uid, Event::Tick);
        }
    }

    pub(crate) fn process_ends(&mut self, uid: &str, life: u64, generation: u64, exit: Exit) {
        let Some(container) = self.alive(uid, life) else { return };
        let Some(process) = container.process.as_mut().filter(|p| p.generation == generation && !p.over) else {
            return;
        };
        process.over = true;
        self.note(|_| format!("the process of {uid} in round {generation} ends: {exit:?}"));
        self.drive(uid, Event::ProcessEnded { generation, exit, main: true, left: 0 });
        let delay = self.random.between(0, 300);
        self.after(delay, What::Gone { uid: uid.to_owned(), life, generation });
    }

    pub(crate) fn group_gone(&mut self, uid: &str, life: u64, generation: u64) {
        let Some(container) = self.alive(uid, life) else { return };
        if container.process.as_ref().is_none_or(|p| p.generation != generation) {
            return;
        }
        container.process = None;
        self.drive(uid, Event::GroupGone { generation });
    }

    /// The machine takes an event, and its commands are carried out.
    pub(crate) fn drive(&mut self, uid: &str, event: Event) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(uid) else { return };
        let (clock, life) = (container.clock(now), container.life);
        let before = container.agent.report().checkpoint;
        let commands = container.agent.step(event, clock);
        let after = container.agent.report().checkpoint;
        let deadline = container.agent.next_deadline().map(|at| at.saturating_sub(clock));
        if after != before {
            self.check_claim(uid, after);
        }
        for command in commands {
            self.obey(uid, life, command);
        }
        if let Some(ms) = deadline {
            self.after(ms.max(1), What::Tick { uid: uid.to_owned(), life });
        }
    }

    fn obey(&mut self, uid: &str, life: u64, command: Command) {
        match command {
            Command::Start(launch) => {
                let generation = launch.generation();
                self.check_start(uid, &launch);
                self.start_process(uid, life, &launch);
                if self.defect == Some(Defect::StartsTwice) {
                    self.check_start(uid, &launch);
                }
                if let Some(container) = self.containers.get_mut(uid) {
                    container.started = Some(generation);
                }
            }
            Command::GoOn { generation } => {
                self.check_going_on(uid, generation);
                self.go_on(uid, generation);
                if let Some(container) = self.containers.get_mut(uid) {
                    container.started = Some(generation);
                }
            }
            Command::Terminate => self.terminate(uid, life),
            Command::Kill => {
                let process = self.containers.get(uid).and_then(|c| c.process.as_ref());
                let Some(generation) = process.map(|p| p.generation) else { return };
                let delay = self.random.between(1, 50);
                let exit = Exit::Signal(9);
                self.after(delay, What::Ends { uid: uid.to_owned(), life, generation, exit });
            }
            Command::Report => self.send_report(uid),
            Command::Refuse(_) => {}
            Command::End { code } => self.agent_ended(uid, code),
        }
    }

    fn terminate(&mut self, uid: &str, life: u64) {
        let Some(container) = self.containers.get_mut(uid) else { return };
        let Some(process) = container.process.as_mut().filter(|p| !p.over) else { return };
        process.stopping = true;
        let on_term = if process.hung { OnTerm::Ignore } else { self.scenario.on_term };
        let (generation, step, rank) = (process.generation, process.step, process.rank);
        let uid = uid.to_owned();
        match on_term {
            OnTerm::Ignore => {}
            OnTerm::Drain if rank == 0 && step > 0 => {
                let most = self.scenario.save_time;
                let delay = self.random.between(50, most);
                self.after(delay, What::Saved { uid, life, generation, step, exit: true });
            }
            OnTerm::Drain | OnTerm::Die => {
                let delay = self.random.between(5, 1_500);
                let exit = Exit::Signal(15);
                self.after(delay, What::Ends { uid, life, generation, exit });
            }
        }
    }

    /// What the kubelet makes of an agent that has ended.
    fn agent_ended(&mut self, uid: &str, code: i32) {
        self.note(|_| format!("the agent of {uid} ends with {code}"));
        let restarts = self.api.spec.restart == RestartPolicy::OnFailure;
        let Some(container) = self.containers.get_mut(uid) else { return };
        container.ended = Some(code);
        if container.signalled {
            container.phase = if code == 0 { WorkerPhase::Succeeded } else { WorkerPhase::Failed };
            self.sync(uid);
            if self.is_linked(uid) {
                self.drop_container(uid);
                self.remove_pod(uid);
            }
        } else if code == 0 {
            container.phase = WorkerPhase::Succeeded;
            self.sync(uid);
        } else if restarts {
            self.restart(uid);
        } else {
            container.phase = WorkerPhase::Failed;
            self.sync(uid);
        }
    }

    /// The container runs out of memory: agent and processes end together.
    pub(crate) fn kill_container(&mut self, uid: &str) {
        let restarts = self.api.spec.restart == RestartPolicy::OnFailure;
        let Some(container) = self.containers.get_mut(uid) else { return };
        (container.process, container.life) = (None, 0);
        if restarts {
            self.restart(uid);
            return;
        }
        (container.ended, container.phase) = (Some(137), WorkerPhase::Failed);
        self.sync(uid);
    }

    pub(crate) fn send_report(&mut self, uid: &str) {
        let Some(container) = self.containers.get_mut(uid) else { return };
        container.sequence += 1;
        let mut report = container.agent.report();
        (report.sequence, report.out_of_reach) = (container.sequence, container.beside.out_of_reach());
        if self.reaches_gateway(uid) {
            self.post(uid, &report);
        }
    }

    /// Whether the pod's network carries to the gateway, which may be away.
    pub(crate) fn reaches_gateway(&self, uid: &str) -> bool {
        self.containers.get(uid).is_some_and(|c| !c.cut && self.nodes.get(&c.node).is_some_and(|n| n.on && n.linked))
    }
}
