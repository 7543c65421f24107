//! What goes wrong, and how it is mended.

use eto_engine::contract::WorkerPhase;
use eto_membership::agent::Exit;

use crate::training::Process;
use crate::world::{What, World};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A training process ends with this code.
    Exit(i32),
    OutOfMemory,
    /// A training process does nothing any more, where hangs are looked for.
    Hang,
    /// A pod is deleted by hand.
    Delete,
    /// The kubelet evicts a pod.
    Evict,
    /// A node is drained: all pods on it are told, and deleted a little later.
    Drain,
    /// The end of a node is announced. Its pods are deleted later, or it loses its power then, or it stays after all.
    Announce,
    CutNode,
    CutHalf,
    PowerOff,
    /// A node is gone, and another comes later.
    DeleteNode,
    /// An agent does not reach the gateway; nothing else is wrong.
    CutAgent,
    /// A pod reaches neither the gateway nor its peers.
    CutPod,
    GatewayAway,
    EtcdAway,
    EtcdLost,
    EtcdRestored,
    ApiAway,
    KillOperator,
    /// The leader stands still for longer than the Lease, and goes on.
    StallOperator,
    SlowNetwork,
    Scale,
    Suspend,
    Template,
    NoRoom,
    Quota,
    StatusLost,
}

/// Those that come as they like.
const ALL: [Fault; 32] = [
    Fault::Exit(1),
    Fault::Exit(139),
    Fault::OutOfMemory,
    Fault::Hang,
    Fault::Hang,
    Fault::Delete,
    Fault::Delete,
    Fault::Evict,
    Fault::Drain,
    Fault::Announce,
    Fault::Announce,
    Fault::CutNode,
    Fault::CutHalf,
    Fault::PowerOff,
    Fault::DeleteNode,
    Fault::CutAgent,
    Fault::CutPod,
    Fault::GatewayAway,
    Fault::EtcdAway,
    Fault::EtcdLost,
    Fault::EtcdRestored,
    Fault::ApiAway,
    Fault::KillOperator,
    Fault::StallOperator,
    Fault::SlowNetwork,
    Fault::Scale,
    Fault::Scale,
    Fault::Scale,
    Fault::Suspend,
    Fault::Template,
    Fault::NoRoom,
    Fault::Quota,
];

/// What brings things back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mend {
    Node(String),
    Uncordon(String),
    Agent(String),
    /// A drained pod goes.
    Evicted(String),
    /// A node loses its power, as was announced.
    Ends(String),
    /// All pods on a node are deleted, as was announced.
    Emptied(String),
    Gateway,
    Etcd,
    Api,
    Network,
    Resume,
    Quota,
}

impl World {
    /// A fault that the seed chooses strikes, and the next one is planned.
    pub(crate) fn fault(&mut self) {
        if !self.storm || self.scenario.faults == 0 {
            return;
        }
        self.scenario.faults -= 1;
        let fault = if self.random.percent(2) { Some(Fault::StatusLost) } else { self.random.pick(&ALL) };
        if let Some(fault) = fault {
            self.strike(fault);
        }
        let mean = self.scenario.fault_every;
        let wait = self.random.between(0, 2 * mean);
        self.after(wait, What::Fault);
    }

    /// True if it found something to strike.
    pub(crate) fn strike(&mut self, fault: Fault) -> bool {
        let struck = self.try_strike(fault);
        if struck {
            self.counts.faults += 1;
        }
        struck
    }

    fn try_strike(&mut self, fault: Fault) -> bool {
        let long = self.random.between(500, 120_000);
        match fault {
            Fault::Exit(code) => self.fail_process(code),
            Fault::OutOfMemory => self.out_of_memory(),
            Fault::Hang => self.hang(),
            Fault::Delete | Fault::Evict => self.strike_pod(fault),
            Fault::Drain => self.drain(),
            Fault::Announce => self.announce(),
            Fault::CutNode | Fault::CutHalf | Fault::PowerOff | Fault::DeleteNode => self.strike_nodes(fault, long),
            Fault::CutAgent => self.cut_agent(long),
            Fault::CutPod => self.cut_pod(long),
            Fault::KillOperator | Fault::StallOperator => self.strike_operator(fault),
            Fault::Scale | Fault::Suspend | Fault::Template => self.user(fault, long),
            Fault::EtcdLost | Fault::EtcdRestored => {
                self.lose_data(fault == Fault::EtcdRestored);
                true
            }
            _ => self.strike_services(fault, long),
        }
    }

    fn strike_services(&mut self, fault: Fault, long: u64) -> bool {
        self.note(|_| format!("{fault:?} for {long} ms"));
        let mend = match fault {
            Fault::GatewayAway => {
                self.gateway.stop(self.now);
                Mend::Gateway
            }
            Fault::EtcdAway => {
                self.etcd.up = false;
                self.group_changed();
                Mend::Etcd
            }
            Fault::ApiAway => {
                self.api.up = false;
                Mend::Api
            }
            Fault::SlowNetwork => {
                self.gateway.slow = self.random.between(500, 12_000);
                Mend::Network
            }
            Fault::NoRoom => {
                let Some(name) = self.some_node() else { return false };
                self.cordon(&name);
                Mend::Uncordon(name)
            }
            Fault::Quota => {
                self.api.quota = usize::try_from(self.random.between(0, 6)).unwrap_or(0);
                Mend::Quota
            }
            Fault::StatusLost => {
                if !self.api.up || self.ghost.has_ended() {
                    return false;
                }
                self.ghost.budget.forgot = true;
                self.api.stored = None;
                self.job_changed();
                // A leader that remembers writes it again; after a restore there is none that does.
                if self.random.percent(75) {
                    self.kill_all(long);
                }
                return true;
            }
            _ => return false,
        };
        self.after(long, What::Mend(mend));
        true
    }

    pub(crate) fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Node(name) => self.bring_back(&name),
            Mend::Uncordon(name) => {
                self.nodes.get_mut(&name).into_iter().for_each(|n| (n.cordoned, n.leaving) = (false, None));
                self.tell_of_nodes();
            }
            Mend::Agent(uid) => self.reconnect(&uid),
            Mend::Evicted(uid) => {
                self.user_deletes(&uid);
            }
            Mend::Ends(name) | Mend::Emptied(name) if !self.is_leaving(&name) => self.note(|_| format!("{name} stays")),
            Mend::Ends(name) => self.power_off(&name),
            Mend::Emptied(name) => self.empty(&name),
            Mend::Gateway => self.start_gateway(),
            Mend::Etcd => {
                self.etcd.up = true;
                self.note(|_| "etcd is back".to_owned());
                self.group_changed();
                self.tell_agents();
            }
            Mend::Api => {
                self.api.up = true;
                self.note(|_| "the API server is back".to_owned());
                self.catch_up();
            }
            Mend::Network => self.gateway.slow = 0,
            Mend::Resume => self.change_spec(|s| s.suspend = false),
            Mend::Quota => self.api.quota = usize::MAX,
        }
    }

    /// Kubelets hear of what was decided while the API server was away, and start what lost its power.
    pub(crate) fn catch_up(&mut self) {
        let going: Vec<String> =
            self.api.pods.values().filter(|p| p.deleting.is_some()).map(|p| p.uid.clone()).collect();
        for uid in &going {
            self.tell_kubelet(uid);
        }
        let waiting: Vec<String> = self
            .api
            .pods
            .values()
            .filter(|p| p.node.is_some() && !p.is_ended())
            .filter(|p| self.containers.get(&p.uid).is_none_or(|c| c.dark))
            .map(|p| p.uid.clone())
            .collect();
        for uid in waiting {
            self.after(500, What::Begin { uid });
        }
        self.sync_all();
    }

    /// A pod whose process trains.
    pub(crate) fn trainer(&mut self) -> Option<(String, u64, u64)> {
        let all: Vec<(String, u64, u64)> = self
            .containers
            .iter()
            .filter_map(|(uid, c)| {
                let process = c.process.as_ref().filter(|p| !p.stopping && !p.over)?;
                Some((uid.clone(), c.life, process.generation))
            })
            .collect();
        self.random.pick(&all)
    }

    fn fail_process(&mut self, code: i32) -> bool {
        let Some((uid, life, generation)) = self.trainer() else { return false };
        self.note(|_| format!("the process of {uid} fails with {code}"));
        self.ghost.budget.own += 1;
        let exit = if code > 128 { Exit::Signal(code - 128) } else { Exit::Code(code) };
        self.process_ends(&uid, life, generation, exit);
        true
    }

    fn out_of_memory(&mut self) -> bool {
        let Some((uid, ..)) = self.trainer() else { return false };
        self.note(|_| format!("the container of {uid} runs out of memory"));
        self.ghost.budget.own += 1;
        self.kill_container(&uid);
        true
    }

    /// One that has made a step: of a script that never tells of progress nobody can know.
    fn hang(&mut self) -> bool {
        let looked_for = self.api.spec.elasticity.hang_timeout.is_some();
        let met = |p: &Process| p.met && !p.alone && !p.stopping && !p.over && !p.hung;
        let able = self.containers.iter().filter(|(_, c)| looked_for && c.process.as_ref().is_some_and(met));
        let all: Vec<String> = able.map(|(uid, _)| uid.clone()).collect();
        let Some(uid) = self.random.pick(&all) else { return false };
        self.note(|_| format!("the process of {uid} hangs"));
        self.ghost.budget.own += 1;
        self.containers.get_mut(&uid).and_then(|c| c.process.as_mut()).into_iter().for_each(|p| p.hung = true);
        true
    }

    fn some_pod(&mut self) -> Option<String> {
        let all: Vec<String> = self.api.pods.keys().cloned().collect();
        self.random.pick(&all)
    }

    fn strike_pod(&mut self, fault: Fault) -> bool {
        let Some(uid) = self.some_pod() else { return false };
        self.note(|_| format!("{fault:?} {uid}"));
        if fault == Fault::Delete {
            return self.user_deletes(&uid);
        }
        let runs = self.api.pods.get(&uid).is_some_and(|p| p.phase == WorkerPhase::Running);
        if !runs || !self.is_linked(&uid) {
            return false;
        }
        self.drop_container(&uid);
        self.change_pod(&uid, |p| {
            (p.phase, p.reason, p.disrupted) = (WorkerPhase::Failed, Some("Evicted".into()), true);
        });
        true
    }

    fn user_deletes(&mut self, uid: &str) -> bool {
        self.delete_pod(uid).is_ok()
    }

    pub(crate) fn some_node(&mut self) -> Option<String> {
        let all: Vec<String> = self.nodes.keys().cloned().collect();
        self.random.pick(&all)
    }

    fn strike_nodes(&mut self, fault: Fault, long: u64) -> bool {
        let all: Vec<String> = self.nodes.keys().cloned().collect();
        let names = match fault {
            Fault::CutHalf => all.iter().take(all.len().div_ceil(2)).cloned().collect(),
            _ => self.random.pick(&all).into_iter().collect::<Vec<_>>(),
        };
        for name in names {
            match fault {
                Fault::PowerOff => self.power_off(&name),
                Fault::DeleteNode => {
                    self.power_off(&name);
                    self.nodes.get_mut(&name).into_iter().for_each(|n| n.exists = false);
                }
                _ => self.cut_node(&name),
            }
            self.after(long, What::Mend(Mend::Node(name)));
        }
        true
    }

    /// All replicas end, and what they know goes with them.
    fn kill_all(&mut self, longest: u64) {
        for at in 0..self.replicas.len() {
            let back = self.random.between(500, longest);
            self.kill_replica(at, back);
        }
    }

    fn strike_operator(&mut self, fault: Fault) -> bool {
        let Some(at) = self.replicas.iter().position(|r| r.term != 0) else { return false };
        let ms = self.random.between(500, 40_000);
        if fault == Fault::KillOperator {
            self.kill_replica(at, ms);
        } else {
            self.note(|_| format!("replica {at} stands still for {ms} ms"));
            // What it has put off until then comes in its order.
            self.replicas[at].stalled_until = self.replicas[at].stalled_until.max(self.now + ms);
        }
        true
    }

    /// Everything that is away comes back.
    pub(crate) fn mend_all(&mut self) {
        self.storm = false;
        self.note(|_| "faults have ceased".to_owned());
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        self.api.up = true;
        for name in nodes {
            self.mend(Mend::Uncordon(name.clone()));
            self.bring_back(&name);
        }
        self.containers.values_mut().for_each(|c| (c.cut, c.isolated) = (false, false));
        if !self.gateway.up {
            self.start_gateway();
        }
        for mend in [Mend::Etcd, Mend::Api, Mend::Network, Mend::Quota] {
            self.mend(mend);
        }
        if self.api.spec.suspend {
            self.mend(Mend::Resume);
        }
    }
}
