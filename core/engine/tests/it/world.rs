//! A small world that carries plans out: pods get nodes and become ready, fail, are deleted, creations are refused,
//! and the operator crashes between any two steps. Whatever happens, once it stops happening a job ends with exactly
//! the right pods or in a terminal phase.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eto_engine::contract::{Framework, Readiness, WorkerPhase};
use eto_engine::job::{Behavior, JobSpec, RestartPolicy, ScalingRules, ScalingSpec, SelectPolicy};
use eto_engine::observe::Pod;
use eto_engine::plan::{Action, NewPod, Plan, PlanFacts, Refused, apply, plan, recover};
use eto_engine::signals::SignalSet;
use eto_engine::state::{JobState, Memory, Phase};
use eto_engine::time::Time;
use eto_engine::{guard, view};
use proptest::prelude::*;

use crate::common::{ANY_ROOM, NOW, job, memory, native, pod, scaling, secs};

struct World {
    job: JobSpec,
    state: JobState,
    memory: Memory,
    pods: Vec<Pod>,
    now: Time,
    /// How many pods can have a node at a time.
    room: usize,
    /// How many pods may exist at a time.
    quota: usize,
    refused: Option<Refused>,
    sick: BTreeSet<String>,
    /// What each pod was made from, by UID.
    envs: BTreeMap<String, NewPod>,
    deleted: bool,
    next_uid: u32,
}

impl World {
    fn new(job: JobSpec) -> Self {
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

    fn plan(&self, state: &JobState) -> Plan {
        let facts = PlanFacts { refused: self.refused.as_ref(), sick_nodes: Some(&self.sick), ..PlanFacts::default() };
        plan(&self.job, state, &self.pods, &facts, self.now)
    }

    /// One step of the operator, which crashes after `steps` writes and actions.
    fn operate(&mut self, mut steps: usize) -> bool {
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
        if self.refused.is_none() {
            let again = self.plan(&self.state);
            assert_eq!(again.actions, [], "planning again after all was carried out");
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
            Action::DeleteJob => self.deleted = true,
        }
    }

    fn create(&mut self, new: &NewPod) {
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
            node: None,
            ..pod(new.index, new.round, new.size)
        });
        self.envs.insert(format!("uid-{}", self.next_uid), new.clone());
    }

    /// What holds for every plan, whatever the facts are.
    fn check_safe(&self, plan: &Plan) {
        let state = &plan.state;
        if state.target != 0 {
            assert!((self.job.min..=self.job.max).contains(&state.target), "target {}", state.target);
        }
        if let Some(round) = state.round.as_ref().filter(|_| !state.phase.is_terminal()) {
            assert_eq!(round.size, state.target);
            assert!(round.generation >= self.state.last_generation, "generations never repeat");
        }
        assert!(state.victims.iter().all(|v| v.index != 0), "the master is never a victim");
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
    fn pass(&mut self, time: Duration) {
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
    fn settle(&mut self) -> bool {
        self.go_on(2000)
    }

    fn go_on(&mut self, steps: usize) -> bool {
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

    fn check_settled(&self) {
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
        assert!(indexes.contains(&0), "the master is there");
        assert!(live.iter().all(|p| p.round == round.generation && p.is_ready()));
        assert!(state.last_resize.as_ref().is_none_or(|r| r.done.is_some()), "no resize is in flight for ever");
        let stuck = |uid: &str| self.pods.iter().any(|p| p.uid == uid && self.sick.contains(p.node.as_ref().unwrap()));
        assert!(state.victims.iter().all(|v| stuck(&v.uid)), "victims are forgotten when they are gone");
        let mut ranks: Vec<u32> = Vec::new();
        for pod in live {
            let new = self.envs.get(&pod.uid).unwrap();
            let get = |key: &str| new.env.iter().find(|(k, _)| k == key).unwrap().1.clone();
            assert_eq!(get("WORLD_SIZE"), state.target.to_string());
            ranks.push(get("RANK").parse().unwrap());
        }
        ranks.sort_unstable();
        assert_eq!(ranks, (0..state.target).collect::<Vec<_>>(), "ranks are dense");
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    Operate,
    CrashAfter(usize),
    Pass(u64),
    Fail(usize, i32),
    Evict(usize),
    RestartInPlace(usize),
    DeletePod(usize),
    Resize(u32),
    Evaluate(Option<u32>),
    Suspend(bool),
    Template(u8),
    Room(usize),
    Quota(usize),
    LoseNode(usize),
    LoseStatus,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    prop_oneof![
        6 => Just(H::Operate),
        3 => (0usize..6).prop_map(H::CrashAfter),
        6 => (1u64..90).prop_map(H::Pass),
        2 => (0usize..8, 1i32..140).prop_map(|(at, code)| H::Fail(at, code)),
        1 => (0usize..8).prop_map(H::Evict),
        1 => (0usize..8).prop_map(H::RestartInPlace),
        2 => (0usize..8).prop_map(H::DeletePod),
        1 => (1u32..9).prop_map(H::Resize),
        3 => proptest::option::of(1u32..9).prop_map(H::Evaluate),
        1 => any::<bool>().prop_map(H::Suspend),
        1 => (0u8..3).prop_map(H::Template),
        1 => (0usize..9).prop_map(H::Room),
        1 => (0usize..9).prop_map(H::Quota),
        1 => (0usize..8).prop_map(H::LoseNode),
        1 => Just(H::LoseStatus),
    ]
}

impl World {
    fn pick(&mut self, at: usize) -> Option<&mut Pod> {
        let n = self.pods.len();
        self.pods.get_mut(at.checked_rem(n)?)
    }

    /// A policy proposes, the guard decides, the target moves.
    fn evaluate(&mut self, answer: Option<u32>) {
        let view = view::build(&view::Facts {
            job: &self.job,
            state: &self.state,
            memory: &self.memory,
            pods: &self.pods,
            signals: &SignalSet::default(),
            wants: &[],
            capacity: ANY_ROOM,
            now: self.now,
        });
        let policy = native(move |_| answer);
        let d = guard::decide(&self.job, &self.state, &mut self.memory, &view, Ok(&policy), None, self.now);
        let running = self.state.round.as_ref().is_some_and(|r| r.running_since.is_some());
        let known = self.state.target != 0 && self.state.based_on == self.job.replicas;
        if known && !running {
            assert_eq!(d.target, d.from, "one resize at a time");
        }
        apply(&self.job, &mut self.state, &mut self.memory, &d, self.now);
    }

    fn happen(&mut self, what: &Happening) {
        let (now, min, max) = (self.now, self.job.min, self.job.max);
        match what {
            Happening::Operate => {
                self.operate(usize::MAX);
            }
            Happening::CrashAfter(steps) => {
                self.operate(*steps);
            }
            Happening::Pass(s) => self.pass(secs(*s)),
            Happening::Fail(at, code) => {
                if let Some(p) = self.pick(*at).filter(|p| p.phase == WorkerPhase::Running) {
                    (p.phase, p.exit_code, p.ready) = (WorkerPhase::Failed, Some(*code), Readiness::NotReady);
                }
            }
            Happening::Evict(at) => {
                if let Some(p) = self.pick(*at).filter(|p| p.phase == WorkerPhase::Running) {
                    (p.phase, p.reason) = (WorkerPhase::Failed, Some("Evicted".into()));
                }
            }
            Happening::RestartInPlace(at) => {
                if let Some(p) = self.pick(*at).filter(|p| p.phase == WorkerPhase::Running) {
                    p.restarts += 1;
                }
            }
            Happening::DeletePod(at) => {
                if let Some(p) = self.pick(*at) {
                    p.deleting.get_or_insert(now);
                }
            }
            Happening::Resize(n) => {
                self.job.replicas = (*n).clamp(min, max);
                self.job.generation += 1;
            }
            Happening::Evaluate(answer) => self.evaluate(*answer),
            Happening::Suspend(yes) => self.job.suspend = *yes,
            Happening::Template(n) => self.job.template.as_mut().unwrap().hash = format!("t{n}"),
            Happening::Room(n) => self.room = *n,
            Happening::Quota(n) => self.quota = *n,
            Happening::LoseNode(at) => {
                if let Some(p) = self.pick(*at).filter(|p| p.node.is_some()) {
                    p.deleting.get_or_insert(now);
                    let node = p.node.clone().unwrap();
                    self.sick.insert(node);
                }
            }
            Happening::LoseStatus => {
                if !self.state.phase.is_terminal() {
                    let before = self.state.round.as_ref().map(|r| r.size);
                    self.state = recover(&self.job, &self.pods, self.now);
                    if let (Some(before), Some(after)) = (before, &self.state.round)
                        && self.pods.iter().all(|p| p.round <= after.generation)
                        && self.pods.iter().any(|p| p.deleting.is_none() && p.round_size == before)
                    {
                        assert!(after.size > 0);
                    }
                }
            }
        }
    }
}

fn any_job() -> impl Strategy<Value = JobSpec> {
    let restart =
        prop_oneof![Just(RestartPolicy::OnFailure), Just(RestartPolicy::Never), Just(RestartPolicy::ExitCode),];
    (1u32..4, 0u32..4, 0u32..5, restart, 0u32..8).prop_map(|(min, more, most, restart, limit)| {
        let mut spec = job(min, min + more, min + more + most);
        (spec.restart, spec.backoff_limit) = (restart, limit);
        let free =
            ScalingRules { stabilization: Duration::ZERO, select: SelectPolicy::Max, policies: vec![], tolerance: 0.1 };
        let behavior = Some(Behavior { up: free.clone(), down: free });
        spec.scaling = Some(ScalingSpec { behavior, ..scaling(vec![], true) });
        spec
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_job_ends_with_the_right_pods_or_at_its_end(
        spec in any_job(),
        story in proptest::collection::vec(happening(), 0..60),
    ) {
        let mut world = World::new(spec);
        for what in &story {
            world.happen(what);
        }
        // It stops happening.
        (world.room, world.quota) = (64, 64);
        world.job.suspend = false;
        prop_assert!(world.settle(), "it does not come to rest: {:?}", world.state);
        world.check_settled();
    }

    #[test]
    fn with_too_little_room_a_job_is_as_large_as_it_can_be_or_waits_as_a_whole(
        spec in any_job(),
        room in 1usize..9,
    ) {
        let (min, wanted) = (spec.min, spec.replicas);
        let mut world = World::new(spec);
        world.room = room;
        world.go_on(150);
        let fits = u32::try_from(room).unwrap();
        if fits >= min {
            prop_assert_eq!(world.state.target, wanted.min(fits));
            world.check_settled();
        } else {
            prop_assert_eq!(world.state.target, wanted);
            prop_assert!(world.state.round.as_ref().unwrap().running_since.is_none());
            prop_assert!(world.state.start_attempts > 0, "it was tried again");
        }
    }

    #[test]
    fn success_of_the_master_is_the_end(spec in any_job()) {
        let mut world = World::new(spec);
        world.job.framework = Framework::PyTorch;
        for _ in 0..10 {
            world.operate(usize::MAX);
            world.pass(secs(5));
        }
        world.pods.iter_mut().filter(|p| p.index == 0).for_each(|p| p.phase = WorkerPhase::Succeeded);
        prop_assert!(world.settle());
        prop_assert_eq!(world.state.phase, Phase::Succeeded);
        prop_assert_eq!(world.pods.len(), 1, "what still ran is gone, the master stays for its log");
    }
}
