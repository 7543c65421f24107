//! The plans of one job with many members: what each costs at 4,096 members over 512. See the README beside `benches`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::time::Duration;

use eto_engine::contract::{Framework, Readiness, WorkerPhase, WorkerRequest};
use eto_engine::job::{CleanPods, Elasticity, JobKey, JobSpec, LegalSizes, RestartPolicy, TemplateFacts};
use eto_engine::observe::Pod;
use eto_engine::plan::{Action, AgentFacts, Group, NewPod, PlanFacts, plan};
use eto_engine::state::{JobState, Phase};
use eto_engine::time::Time;
use eto_membership::{MAX_MEMBERS, MemberRecord, MemberState, Order, Report};

/// CPU time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

/// A cluster in which everything happens at once.
struct World {
    job: JobSpec,
    state: JobState,
    pods: Vec<Pod>,
    group: Option<Group>,
    now: Time,
    made: u32,
    planning: Duration,
    /// Bytes of the environments of all pods that were made last.
    environments: usize,
}

impl World {
    fn new(size: u32, agents: bool) -> Self {
        let job = job(size);
        let (state, pods, group) = (JobState::default(), Vec::new(), agents.then(Group::default));
        let (now, planning) = (Time(1_700_000_000_000), Duration::ZERO);
        World { job, state, pods, group, now, made: 0, planning, environments: 0 }
    }

    /// Plans until nothing is left to do; CPU time of all plans, in microseconds for each member.
    fn settle(&mut self) -> f64 {
        (self.planning, self.environments) = (Duration::ZERO, 0);
        for _ in 0..100 {
            self.now = Time(self.now.0 + 1000);
            let agent = AgentFacts { gateway: self.group.is_some() };
            let facts = PlanFacts { group: self.group.as_ref(), agent, ..PlanFacts::default() };
            let began = cpu();
            let next = plan(&self.job, &self.state, &self.pods, &facts, self.now);
            self.planning += cpu().saturating_sub(began);
            let quiet = next.actions.is_empty() && next.state == self.state;
            self.state = next.state;
            next.actions.iter().for_each(|action| self.act(action));
            if quiet && self.state.phase == Phase::Running {
                return self.planning.as_secs_f64() * 1e6 / f64::from(self.job.max);
            }
        }
        panic!("the job does not come to rest: {:?}", self.state.conditions)
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::CreatePod(new) => self.create(new),
            Action::DeletePod { uid, .. } => {
                self.pods.retain(|p| p.uid != *uid);
                self.group.iter_mut().for_each(|g| drop(g.members.remove(uid)));
            }
            Action::Assign(assignment) => {
                let Some(group) = &mut self.group else { return };
                let generation = assignment.round.generation;
                for record in group.members.values_mut() {
                    record.report.generation = generation;
                    record.report.state = match assignment.order {
                        Order::Run => MemberState::Running { generation },
                        Order::Stop | Order::End => MemberState::Idle,
                    };
                }
                group.assignment = Some((**assignment).clone());
            }
            Action::EnsureService | Action::DeleteJob => {}
        }
    }

    fn create(&mut self, new: &NewPod) {
        self.environments += new.env.variables().iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        self.made += 1;
        let uid = format!("6f1d8c52-7e0b-4f4e-9d60-{:012}", self.made);
        let report = Report {
            address: format!("10.{}.{}.{}", self.made >> 16, (self.made >> 8) & 255, self.made & 255),
            processes: 1,
            ..Report::default()
        };
        let record = MemberRecord { pod: uid.clone(), report, joined_ms: self.now.0, suspected: false };
        self.group.iter_mut().for_each(|g| drop(g.members.insert(uid.clone(), record.clone())));
        self.pods.push(pod(new, uid, self.now));
    }
}

fn job(size: u32) -> JobSpec {
    let request = WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 0.0 };
    JobSpec {
        key: JobKey { namespace: "team-a".into(), name: "wide".into() },
        uid: "6f1d8c52-7e0b-4f4e-9d60-000000000000".into(),
        generation: 1,
        created: Time(0),
        framework: Framework::PyTorch,
        replicas: size,
        min: 1,
        max: size,
        legal: LegalSizes::Any,
        types: eto_engine::job::ReplicaTypes::default(),
        template: Some(TemplateFacts {
            hash: "t1".into(),
            request,
            containers: BTreeMap::from([("train".into(), request)]),
            processes: 1,
            processes_without_agent: 1,
            command: true,
            overridden: vec![],
        }),
        restart: RestartPolicy::OnFailure,
        backoff_limit: 6,
        suspend: false,
        active_deadline: None,
        ttl_after_finished: None,
        clean_pods: CleanPods::Running,
        scaling: None,
        placement: None,
        elasticity: Elasticity::default(),
    }
}

fn pod(new: &NewPod, uid: String, now: Time) -> Pod {
    Pod {
        name: format!("wide-worker-{}-{}", new.index, new.incarnation),
        uid,
        index: new.index,
        round: new.round,
        round_size: new.size,
        incarnation: new.incarnation,
        mode: new.mode,
        template_hash: "t1".into(),
        phase: WorkerPhase::Running,
        reason: None,
        ready: Readiness::Ready,
        created: now,
        started: Some(now),
        ready_changed: Some(now),
        ended: None,
        node: Some(format!("node-{}", new.index)),
        unschedulable: None,
        waiting: None,
        deleting: None,
        restarts: 0,
        exit_code: None,
        last_end: None,
        memory_limit: 0,
        disrupted: false,
        request: WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 0.0 },
    }
}

/// What each kind of change costs in plans, in microseconds for each member; the last: bytes of environment per pod.
fn costs(size: u32, agents: bool) -> [f64; 6] {
    let mut world = World::new(size, agents);
    let start = world.settle();
    let per_pod = f64::from(u32::try_from(world.environments).unwrap()) / f64::from(size);
    let rest = world.settle();
    world.job.replicas = size / 2;
    let shrink = world.settle();
    world.job.replicas = size;
    let growth = world.settle();
    world.pods.retain(|p| p.index % 8 != 3);
    let there: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    let there: std::collections::BTreeSet<String> = there.into_iter().collect();
    world.group.iter_mut().for_each(|g| g.members.retain(|uid, _| there.contains(uid)));
    let loss = world.settle();
    [start, rest, shrink, growth, loss, per_pod]
}

/// Over as many jobs as have 65,536 members together: the clock of CPU time may be a coarse one.
fn mean(size: u32, agents: bool) -> [f64; 6] {
    let jobs = 65_536 / size;
    let all = (0..jobs).map(|_| costs(size, agents));
    all.fold([0.0; 6], |sum, of| std::array::from_fn(|at| sum[at] + of[at] / f64::from(jobs)))
}

fn main() {
    let names = ["start", "rest", "shrink to half", "growth", "an eighth lost", "bytes of environment"];
    println!("plans of one job: us per member, and what a member costs at the larger size over the smaller");
    for (mode, agents) in [("pods recreated", false), ("agents", true)] {
        let few = mean(512, agents);
        let many = mean(MAX_MEMBERS, agents);
        for ((name, few), many) in names.iter().zip(few).zip(many) {
            println!(
                "{mode:>15} {name:>22}: {few:9.2} at 512, {many:9.2} at {MAX_MEMBERS}, {:6.2}",
                many / few.max(1e-9)
            );
        }
    }
}
