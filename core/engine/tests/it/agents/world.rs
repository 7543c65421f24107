//! A small world of pods whose agents follow the protocol: they hear late or not at all, their processes take their time
//! to stop, nodes go, the gateway goes, and the operator crashes between any two of its writes.
// Long because it is one world: what it does in a step and what it checks there share all of its fields.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::placement::NodeChoice;
use eto_engine::plan::{
    Action, AgentFacts, Announced, Group, ImageCommand, NewPod, Plan, PlanFacts, ProgressSeen, Refused, plan,
};
use eto_engine::state::{JobState, Phase, RoundMode, RoundOrder};
use eto_engine::time::{Time, millis};
use eto_membership::{Assignment, Member, Order, Round};

use super::containers::Container;
use crate::common::{NOW, pod, secs};

pub(crate) struct AgentWorld {
    pub(crate) job: JobSpec,
    pub(crate) state: JobState,
    pub(crate) pods: Vec<Pod>,
    pub(crate) now: Time,
    /// How many pods can have a node at a time.
    pub(crate) room: usize,
    /// Where the placement policy wants new workers. Nodes that it demands never have room.
    pub(crate) places: BTreeMap<u32, NodeChoice>,
    /// UIDs of pods that wait for such a node.
    demanding: BTreeSet<String>,
    /// How many pods may exist at a time.
    pub(crate) quota: usize,
    pub(crate) refused: Option<Refused>,
    /// What the operator has seen of the members' progress; lost when it ends.
    pub(crate) progress_seen: Option<ProgressSeen>,
    pub(crate) sick: BTreeSet<String>,
    /// Where the scheduler puts all new pods; `None` = each gets a node of its own.
    pub(crate) puts_on: Option<String>,
    /// Pods whose end is announced, by UID.
    pub(crate) leaving: BTreeMap<String, Announced>,
    /// UIDs of pods that can't reach the gateway.
    pub(crate) cut: BTreeSet<String>,
    /// UIDs of pods that those beside them do not reach any more.
    pub(crate) out_of_reach: BTreeSet<String>,
    /// What is in etcd.
    pub(crate) group: Group,
    /// Whether the gateway and etcd answer.
    pub(crate) gateway: bool,
    /// Since when it does, or does not.
    pub(crate) gateway_since: Time,
    /// Whether the command of pods that are made is torchrun.
    pub(crate) torchrun: bool,
    /// What is known of the image's command.
    pub(crate) image: ImageCommand<'static>,
    pub(crate) containers: BTreeMap<String, Container>,
    /// How long processes take to stop.
    pub(crate) stop_time: Duration,
    /// Every round that was ever published, by generation.
    pub(crate) published: BTreeMap<u64, Round>,
    /// UIDs of the pods that were to be deleted, by a state that was written: a former leader may do so at any moment.
    pub(crate) doomed: BTreeSet<String>,
    /// When the order in force was published.
    told: Time,
    /// Every start of processes: index, generation.
    pub(crate) starts: Vec<(u32, u64)>,
    pub(crate) deleted: bool,
    /// How often agents were told that they stop because of a hang.
    pub(crate) hung_told: u32,
    /// Memory that each new pod was to have.
    pub(crate) memories: Vec<Option<u64>>,
    pub(crate) next_uid: u32,
}

impl AgentWorld {
    pub(crate) fn new(job: JobSpec) -> Self {
        AgentWorld {
            job,
            state: JobState::default(),
            pods: vec![],
            now: NOW,
            room: 64,
            places: BTreeMap::new(),
            demanding: BTreeSet::new(),
            quota: 64,
            refused: None,
            progress_seen: None,
            sick: BTreeSet::new(),
            puts_on: None,
            leaving: BTreeMap::new(),
            cut: BTreeSet::new(),
            out_of_reach: BTreeSet::new(),
            group: Group::default(),
            gateway: true,
            gateway_since: NOW,
            torchrun: true,
            image: ImageCommand::Unread,
            containers: BTreeMap::new(),
            stop_time: secs(2),
            published: BTreeMap::new(),
            doomed: BTreeSet::new(),
            told: NOW,
            starts: vec![],
            deleted: false,
            hung_told: 0,
            memories: vec![],
            next_uid: 0,
        }
    }

    pub(crate) fn plan(&self, state: &JobState) -> Plan {
        let facts = PlanFacts {
            refused: self.refused.as_ref(),
            sick_nodes: Some(&self.sick),
            leaving: Some(&self.leaving),
            group: self.gateway.then_some(&self.group),
            agent: AgentFacts { gateway: true },
            progress: self.progress_seen,
            places: Some(&self.places),
            image: self.image,
            ..PlanFacts::default()
        };
        plan(&self.job, state, &self.pods, &facts, self.now)
    }

    /// One step of the operator, which crashes after `steps` writes and actions. True if there was nothing to do.
    pub(crate) fn operate(&mut self, mut steps: usize) -> bool {
        if self.deleted {
            return true;
        }
        let group = self.gateway.then_some(&self.group);
        self.progress_seen = ProgressSeen::next(self.progress_seen, &self.state, group, self.now);
        let plan = self.plan(&self.state);
        assert_eq!(plan, self.plan(&self.state), "the same facts, the same plan");
        self.check_safe(&plan);
        let quiet = plan.state == self.state && plan.actions.is_empty();
        let mut crashed = false;
        let mut take = || {
            crashed |= steps == 0;
            steps = steps.saturating_sub(1);
            !crashed
        };
        if !take() {
            self.progress_seen = None;
            return false;
        }
        self.state = plan.state.clone();
        let doomed = |a: &Action| if let Action::DeletePod { uid, .. } = a { Some(uid.clone()) } else { None };
        self.doomed.extend(plan.actions.iter().filter_map(doomed));
        self.refused = None;
        for action in &plan.actions {
            if !take() {
                self.progress_seen = None;
                return false;
            }
            self.act(action);
        }
        if self.refused.is_none() && !self.deleted {
            let again = self.plan(&self.state);
            let more = |a: &&Action| !matches!(a, Action::Assign(_) | Action::DeletePod { .. });
            assert_eq!(again.actions.iter().find(more), None, "planning again after all was carried out");
        }
        quiet
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::EnsureService => {}
            Action::CreatePod(new) => self.create(new),
            Action::DeletePod { uid, .. } => {
                let now = self.now;
                self.pods.iter_mut().filter(|p| p.uid == *uid).for_each(|p| p.deleting = Some(now));
            }
            Action::Assign(assignment) => self.assign(assignment),
            Action::DeleteJob => self.deleted = true,
        }
    }

    fn assign(&mut self, new: &Assignment) {
        assert!(self.gateway, "nothing is written that was not read");
        if let Some(current) = &self.group.assignment {
            assert_eq!(new.may_follow(current), Ok(()), "{new:?}");
            assert_ne!(new, current, "nothing is written twice");
        }
        let doomed = |m: &&Member| m.uid.as_ref().is_some_and(|uid| self.doomed.contains(uid));
        let goes = new.round.members.iter().find(doomed).filter(|_| new.order != Order::End);
        assert_eq!(goes, None, "a deletion that was decided is not taken back: {new:?}");
        let generation = new.round.generation;
        let known = self.published.entry(generation).or_insert_with(|| new.round.clone());
        assert_eq!(*known, new.round, "never two rounds of one generation");
        if new.order == Order::Run {
            let size = u32::try_from(new.round.members.len()).unwrap();
            assert!((self.job.min..=self.job.max).contains(&size), "{size} members");
            let types = (0..self.job.types.count()).all(|i| new.round.rank_of(i).is_some());
            assert!(types && new.round.types == self.job.types, "nobody trains without them: {new:?}");
            self.check_all_stopped(new);
        }
        self.told = self.now;
        self.hung_told += u32::from(new.hung);
        assert!(!new.hung || new.order == Order::Stop, "{new:?}");
        self.group.assignment = Some(new.clone());
    }

    /// Nobody is told to run while something of an earlier round may run that could have been waited for.
    fn check_all_stopped(&self, new: &Assignment) {
        if let Some(native) = new.native.filter(|n| n.run < new.round.generation) {
            // They go on: the store that they met at has to be where it was.
            let first = &self.published[&native.run];
            assert_eq!((&new.round.members[0], new.round.port), (&first.members[0], first.port), "{new:?}");
            let size = u32::try_from(new.round.members.len()).unwrap();
            assert!((native.min..=native.max).contains(&size));
            return;
        }
        let patience = millis(self.job.elasticity.drain_deadline).max(5_000) + 10_000;
        let waited = self.group.assignment.as_ref().is_some_and(|a| a.order == Order::Stop)
            && self.now.0 - self.told.0 >= patience.min(15_000);
        for (uid, container) in &self.containers {
            let reached = self.pods.iter().any(|p| p.uid == *uid && !self.is_off(p) && !p.is_ended());
            let earlier = container.runs.is_some_and(|of| of < new.round.generation);
            assert!(!(earlier && reached) || waited, "{uid} runs {:?} at {new:?}", container.runs);
        }
    }

    pub(crate) fn is_off(&self, pod: &Pod) -> bool {
        pod.node.as_ref().is_some_and(|n| self.sick.contains(n))
    }

    fn create(&mut self, new: &NewPod) {
        let same = |p: &&Pod| p.index == new.index && p.incarnation == new.incarnation;
        assert_eq!(self.pods.iter().find(same), None, "a name is used by one pod at a time");
        assert_eq!((new.mode, new.env.variables().len()), (RoundMode::Agent, 0));
        if self.pods.len() >= self.quota {
            let created = u32::try_from(self.pods.iter().filter(|p| p.deleting.is_none()).count()).unwrap();
            self.refused = Some(Refused { round: new.round, created, message: "exceeded quota".into() });
            return;
        }
        self.memories.push(new.memory);
        self.next_uid += 1;
        if new.node.as_ref().is_some_and(|n| n.required) {
            self.demanding.insert(format!("uid-{}", self.next_uid));
        }
        self.pods.push(Pod {
            name: format!("demo-worker-{}-{}", new.index, new.incarnation),
            uid: format!("uid-{}", self.next_uid),
            incarnation: new.incarnation,
            mode: new.mode,
            template_hash: self.job.template.as_ref().unwrap().hash.clone(),
            phase: WorkerPhase::Pending,
            ready: Readiness::Unknown,
            created: self.now,
            started: None,
            ready_changed: None,
            ended: None,
            node: None,
            ..pod(new.index, new.round, new.size)
        });
    }

    /// What holds for every plan, whatever the facts are.
    fn check_safe(&self, plan: &Plan) {
        let state = &plan.state;
        if state.target != 0 {
            assert!((self.job.min..=self.job.max).contains(&state.target), "target {}", state.target);
        }
        let lost = ["not heard of", "did not start", "failed", "disrupted", "pending", "out of memory", "announced"];
        for victim in &state.victims {
            let replaced = lost.iter().any(|why| victim.reason.contains(why));
            assert!(self.job.may_give_up(victim.index) || replaced, "it is never given up: {victim:?}");
        }
        let round = state.round.as_ref().and_then(|r| r.agent.as_ref());
        for action in &plan.actions {
            let Action::DeletePod { uid, .. } = action else { continue };
            let pod = self.pods.iter().find(|p| p.uid == *uid).expect("only pods that are there");
            let member = round.is_some_and(|r| r.members.iter().any(|m| m.uid == *uid));
            if state.phase.is_terminal() || self.is_off(pod) || pod.is_ended() || pod.disrupted {
                continue;
            }
            assert!(!member || state.phase == Phase::Suspended, "a member is not deleted: {pod:?}");
            let runs = self.containers.get(uid).is_some_and(|c| c.runs.is_some());
            let over = self.group.assignment.as_ref().is_some_and(|a| a.order == Order::Run);
            // Where no round stands any more, the pod's own grace is what its processes get.
            let over = over || round.is_none_or(|r| r.order == RoundOrder::Gather);
            let waited = over || self.now.0 - self.told.0 >= 15_000 || !self.gateway || self.is_silent(uid);
            assert!(!runs || waited, "a pod is deleted after its processes have stopped: {pod:?} {state:?}");
        }
        if self.state.phase.is_terminal() {
            assert_eq!(state.phase, self.state.phase, "terminal is terminal");
        }
        if self.gateway && !state.phase.is_terminal() && self.state.round.is_some() {
            let known = self.group.assignment.as_ref().map_or(0, |a| a.round.generation);
            assert!(state.last_generation >= known, "generations only grow");
        }
    }

    fn is_silent(&self, uid: &str) -> bool {
        self.group.members.get(uid).is_none_or(|m| m.suspected)
    }

    /// The world goes on for a while. Agents whose bit is set in `hear` are told the assignment, and are heard.
    pub(crate) fn pass(&mut self, time: Duration, hear: u16) {
        self.now = self.now.plus(time);
        self.schedule();
        let uids: Vec<String> = self.pods.iter().map(|p| p.uid.clone()).collect();
        for (at, uid) in uids.iter().enumerate() {
            let told = hear & (1 << (at % 16)) != 0;
            self.live(uid, told);
        }
        let there: BTreeSet<&String> = self.pods.iter().map(|p| &p.uid).collect();
        self.containers.retain(|uid, _| there.contains(uid));
        self.group.members.retain(|uid, _| there.contains(uid));
        self.leaving.retain(|uid, _| there.contains(uid));
    }

    /// The scheduler and the kubelets.
    fn schedule(&mut self) {
        let now = self.now;
        let mut placed = self.pods.iter().filter(|p| p.node.is_some() && !p.is_ended()).count();
        let sick = self.sick.clone();
        for pod in &mut self.pods {
            let off = pod.node.as_ref().is_some_and(|n| sick.contains(n));
            let free = placed < self.room && !self.demanding.contains(&pod.uid);
            if pod.node.is_none() && pod.deleting.is_none() && free {
                placed += 1;
                pod.node = Some(self.puts_on.clone().unwrap_or_else(|| format!("node-{}", pod.uid)));
            } else if pod.node.is_some() && pod.phase == WorkerPhase::Pending && !off && pod.deleting.is_none() {
                (pod.phase, pod.ready) = (WorkerPhase::Running, Readiness::Ready);
                (pod.started, pod.ready_changed) = (Some(now), Some(now));
                self.containers.insert(pod.uid.clone(), Container::new(pod, self.torchrun, now));
            }
        }
        let grace = self.job.elasticity.drain_deadline;
        let containers = &self.containers;
        self.pods.retain(|p| {
            let off = p.node.as_ref().is_some_and(|n| sick.contains(n));
            let done = containers.get(&p.uid).is_none_or(|c| c.ended.is_some());
            p.deleting.is_none_or(|d| off || !(done || p.is_ended() || now.since(d) >= grace))
        });
    }

    pub(crate) fn pick(&mut self, at: usize) -> Option<&mut Pod> {
        let n = self.pods.len();
        self.pods.get_mut(at.checked_rem(n)?)
    }

    /// Until nothing happens any more; false if that does not come.
    pub(crate) fn settle(&mut self) -> bool {
        let mut quiet = 0;
        for round in 0..3000 {
            let still = self.operate(usize::MAX);
            quiet = if still { quiet + 1 } else { 0 };
            if quiet > 50 {
                return true;
            }
            self.pass(secs(if round % 5 == 4 { 181 } else { 1 }), u16::MAX);
        }
        false
    }

    /// A job that trains with all of its workers.
    pub(crate) fn running(job: JobSpec) -> Self {
        let mut world = AgentWorld::new(job);
        world.go(20);
        assert_eq!(world.state.phase, Phase::Running, "{:?}", world.state);
        world
    }

    /// So many steps of one second.
    pub(crate) fn go(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.operate(usize::MAX);
            self.pass(secs(1), u16::MAX);
        }
        self.operate(usize::MAX);
    }

    pub(crate) fn members(&self) -> Vec<u32> {
        let round = self.state.round.as_ref().and_then(|r| r.agent.as_ref());
        round.map(|r| r.members.iter().map(|m| m.index).collect()).unwrap_or_default()
    }

    pub(crate) fn order(&self) -> RoundOrder {
        self.state.round.as_ref().and_then(|r| r.agent.as_ref()).map_or(RoundOrder::Gather, |r| r.order)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state.round.as_ref().map_or(0, |r| r.generation)
    }

    pub(crate) fn check_settled(&self) {
        let state = &self.state;
        if state.phase.is_terminal() {
            assert!(self.pods.iter().all(|p| p.is_ended() || p.deleting.is_some()), "what ran is gone");
            assert!(self.group.assignment.as_ref().is_none_or(|a| a.order == Order::End));
            return;
        }
        let round = state.round.as_ref().expect("a round");
        let agent = round.agent.as_ref().expect("with an agent");
        assert_eq!((state.phase, agent.order), (Phase::Running, RoundOrder::Run), "{state:?}");
        let target = usize::try_from(state.target).unwrap();
        assert_eq!(agent.members.len(), target, "{state:?}");
        let live: Vec<&Pod> = self.pods.iter().filter(|p| p.deleting.is_none()).collect();
        assert_eq!(live.len(), target, "exactly the right pods: {live:?}");
        let indexes: BTreeSet<u32> = live.iter().map(|p| p.index).collect();
        assert_eq!(indexes.len(), target);
        for pod in &live {
            assert!(agent.members.iter().any(|m| m.uid == pod.uid && m.index == pod.index));
            assert_eq!(self.containers[&pod.uid].runs, Some(round.generation), "{pod:?}");
        }
        let published = self.group.assignment.as_ref().unwrap();
        assert_eq!((published.round.generation, published.order), (round.generation, Order::Run));
        assert!(state.last_resize.as_ref().is_none_or(|r| r.done.is_some()), "no resize is in flight for ever");
        let stuck = |uid: &str| self.pods.iter().any(|p| p.uid == uid && self.is_off(p));
        assert!(state.victims.iter().all(|v| stuck(&v.uid)), "victims are forgotten when they are gone");
        assert!(state.change.as_ref().is_none_or(|_| !state.victims.is_empty()), "{:?}", state.change);
    }
}
