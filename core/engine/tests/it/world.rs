//! A small world that carries plans out: pods get nodes and become ready, creations are refused where there is no quota,
//! and the operator crashes between any two steps. Every plan is checked against what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::plan::{Action, NewPod, Plan, PlanFacts, Refused, plan};
use eto_engine::state::{JobState, Memory, Phase};
use eto_engine::time::Time;

use crate::common::{NOW, memory, pod, secs};

pub(crate) struct World {
    pub(crate) job: JobSpec,
    pub(crate) state: JobState,
    pub(crate) memory: Memory,
    pub(crate) pods: Vec<Pod>,
    pub(crate) now: Time,
    /// How many pods can have a node at a time.
    pub(crate) room: usize,
    /// How many pods may exist at a time.
    pub(crate) quota: usize,
    pub(crate) refused: Option<Refused>,
    pub(crate) sick: BTreeSet<String>,
    /// What each pod was made from, by UID.
    pub(crate) envs: BTreeMap<String, NewPod>,
    pub(crate) deleted: bool,
    pub(crate) next_uid: u32,
}

impl World {
    pub(crate) fn new(job: JobSpec) -> Self {
        World {
            job,
            state: JobState::default(),
            memory: memory(),
            pods: vec![],
            now: NOW,
            room: 64,
            quota: 64,
            refused: None,
            sick: BTreeSet::new(),
            envs: BTreeMap::new(),
            deleted: false,
            next_uid: 0,
        }
    }

    pub(crate) fn plan(&self, state: &JobState) -> Plan {
        let facts = PlanFacts { refused: self.refused.as_ref(), sick_nodes: Some(&self.sick), ..PlanFacts::default() };
        plan(&self.job, state, &self.pods, &facts, self.now)
    }

    /// One step of the operator, which crashes after `steps` writes and actions.
    pub(crate) fn operate(&mut self, mut steps: usize) -> bool {
        if self.deleted {
            return true;
        }
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
            return false;
        }
        self.state = plan.state.clone();
        self.refused = None;
        for action in &plan.actions {
            if !take() {
                return false;
            }
            self.act(action);
        }
        if self.refused.is_none() && !self.deleted {
            let again = self.plan(&self.state);
            assert_eq!(again.actions, [], "planning again after all was carried out");
        }
        quiet
    }

    pub(crate) fn act(&mut self, action: &Action) {
        match action {
            Action::EnsureService | Action::Assign(_) => {}
            Action::CreatePod(new) => self.create(new),
            Action::DeletePod { uid, .. } => {
                let now = self.now;
                self.pods.iter_mut().filter(|p| p.uid == *uid).for_each(|p| p.deleting = Some(now));
            }
            Action::DeleteJob => self.deleted = true,
        }
    }

    pub(crate) fn create(&mut self, new: &NewPod) {
        let same = |p: &&Pod| p.index == new.index && p.round == new.round;
        assert_eq!(self.pods.iter().find(same), None, "a pod is made once");
        assert!(self.pods.iter().all(|p| p.round == new.round || self.sick.contains(p.node.as_ref().unwrap())));
        if self.pods.len() >= self.quota {
            let created = u32::try_from(self.pods.iter().filter(|p| p.round == new.round).count()).unwrap();
            self.refused = Some(Refused { round: new.round, created, message: "exceeded quota".into() });
            return;
        }
        self.next_uid += 1;
        self.pods.push(Pod {
            name: format!("demo-worker-{}-{}", new.index, new.round),
            uid: format!("uid-{}", self.next_uid),
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
        self.envs.insert(format!("uid-{}", self.next_uid), new.clone());
    }

    /// What holds for every plan, whatever the facts are.
    pub(crate) fn check_safe(&self, plan: &Plan) {
        let state = &plan.state;
        if state.target != 0 {
            assert!((self.job.min..=self.job.max).contains(&state.target), "target {}", state.target);
        }
        if let Some(round) = state.round.as_ref().filter(|_| !state.phase.is_terminal()) {
            assert_eq!(round.size, state.target);
            assert!(round.generation >= self.state.last_generation, "generations never repeat");
        }
        assert!(state.victims.iter().all(|v| self.job.may_give_up(v.index)), "never the master, and workers alone");
        for action in &plan.actions {
            if let Action::DeletePod { uid, .. } = action {
                let pod = self.pods.iter().find(|p| p.uid == *uid).expect("only pods that are there");
                let healthy_member = state.round.as_ref().is_some_and(|r| {
                    r.generation == pod.round && !state.phase.is_terminal() && !r.gaps.contains(&pod.index)
                });
                assert!(!healthy_member, "a member of the present round is never deleted");
            }
        }
        if self.state.phase.is_terminal() {
            assert_eq!(state.phase, self.state.phase, "terminal is terminal");
        }
    }

    /// The kubelets and the scheduler go on for a while.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        let now = self.now;
        let sick = self.sick.clone();
        let on_sick = |p: &Pod| p.node.as_ref().is_some_and(|n| sick.contains(n));
        self.pods.retain(|p| p.deleting.is_none_or(|d| on_sick(p) || now.since(d) < secs(2)));
        let mut placed = self.pods.iter().filter(|p| p.node.is_some() && !p.is_ended()).count();
        for pod in &mut self.pods {
            if pod.node.is_none() && pod.deleting.is_none() && placed < self.room {
                placed += 1;
                pod.node = Some(format!("node-{}-{}", pod.index, pod.round));
            } else if pod.node.is_some() && pod.phase == WorkerPhase::Pending && !on_sick(pod) {
                pod.phase = WorkerPhase::Running;
                pod.ready = Readiness::Ready;
                pod.started = Some(now);
                pod.ready_changed = Some(now);
            }
        }
    }

    /// Until nothing happens any more; false if that does not come.
    pub(crate) fn settle(&mut self) -> bool {
        self.go_on(2000)
    }

    pub(crate) fn go_on(&mut self, steps: usize) -> bool {
        let mut quiet = 0;
        for round in 0..steps {
            let still = self.operate(usize::MAX);
            quiet = if still { quiet + 1 } else { 0 };
            if quiet > 50 {
                return true;
            }
            self.pass(secs(if round % 5 == 4 { 181 } else { 1 }));
        }
        false
    }

    pub(crate) fn check_settled(&self) {
        let state = &self.state;
        if state.phase.is_terminal() {
            assert!(self.pods.iter().all(|p| p.is_ended() || p.deleting.is_some()), "what ran is gone");
            return;
        }
        if self.job.suspend {
            assert_eq!((state.phase, self.pods.len()), (Phase::Suspended, 0));
            return;
        }
        let round = state.round.as_ref().expect("a round");
        let live: Vec<&Pod> = self.pods.iter().filter(|p| p.deleting.is_none()).collect();
        assert_eq!(state.phase, Phase::Running, "{state:?}");
        assert_eq!(live.len(), usize::try_from(state.target).unwrap(), "exactly the right pods");
        let indexes: BTreeSet<u32> = live.iter().map(|p| p.index).collect();
        assert_eq!(indexes.len(), live.len());
        assert!((0..self.job.types.count().max(1)).all(|i| indexes.contains(&i)), "the master and all types are there");
        assert!(live.iter().all(|p| p.round == round.generation && p.is_ready()));
        assert!(state.last_resize.as_ref().is_none_or(|r| r.done.is_some()), "no resize is in flight for ever");
        let stuck = |uid: &str| self.pods.iter().any(|p| p.uid == uid && self.sick.contains(p.node.as_ref().unwrap()));
        assert!(state.victims.iter().all(|v| stuck(&v.uid)), "victims are forgotten when they are gone");
        let mut ranks: Vec<u32> = Vec::new();
        for pod in live {
            let new = self.envs.get(&pod.uid).unwrap();
            let env = new.env.variables();
            let get = |key: &str| env.iter().find(|(k, _)| k == key).unwrap().1.clone();
            assert_eq!(get("ETO_WORLD_SIZE"), state.target.to_string());
            ranks.push(get("ETO_RANK").parse().unwrap());
        }
        ranks.sort_unstable();
        assert_eq!(ranks, (0..state.target).collect::<Vec<_>>(), "ranks are dense");
    }
}
