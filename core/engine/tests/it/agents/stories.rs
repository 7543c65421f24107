//! Whatever happens to a job with agents, once it stops happening all of its members train together, or it has ended.

use eto_engine::contract::WorkerPhase;
use eto_engine::job::{ElasticityMode, JobSpec, RestartPolicy, RestartScope};
use eto_engine::plan::{Announced, GATEWAY_PATIENCE, recover};
use eto_engine::state::Phase;
use eto_membership::Progress;
use proptest::prelude::*;

use super::world::AgentWorld;
use crate::common::{job, job_with, secs};

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    Operate,
    CrashAfter(usize),
    /// Milliseconds, who hears.
    Pass(u64, u16),
    Exit(usize, i32),
    KillContainer(usize),
    Evict(usize),
    DeletePod(usize),
    Disrupt(usize),
    LoseNode(usize),
    /// And how long it has, in milliseconds, where that is known.
    Announce(usize, Option<u64>),
    Withdraw,
    Cut(usize),
    Heal,
    Resize(u32),
    Suspend(bool),
    Template(u8),
    Room(usize),
    Quota(usize),
    Gateway(bool),
    StopTime(u64),
    /// Of the job, with the group read or not.
    LoseStatus(bool),
    LoseRecords,
    Checkpoint(usize, u64),
    Progress(usize, u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    let hear = prop_oneof![4 => Just(u16::MAX), 2 => any::<u16>(), 1 => Just(0)];
    prop_oneof![
        10 => Just(H::Operate),
        4 => (0usize..6).prop_map(H::CrashAfter),
        10 => (100u64..20_000, hear).prop_map(|(ms, hear)| H::Pass(ms, hear)),
        2 => (0usize..8, 0i32..140).prop_map(|(at, code)| H::Exit(at, code)),
        1 => (0usize..8).prop_map(H::KillContainer),
        1 => (0usize..8).prop_map(H::Evict),
        2 => (0usize..8).prop_map(H::DeletePod),
        1 => (0usize..8).prop_map(H::Disrupt),
        1 => (0usize..8).prop_map(H::LoseNode),
        2 => (0usize..8, proptest::option::of(0u64..180_000)).prop_map(|(at, by)| H::Announce(at, by)),
        1 => Just(H::Withdraw),
        1 => (0usize..8).prop_map(H::Cut),
        1 => Just(H::Heal),
        3 => (1u32..9).prop_map(H::Resize),
        1 => any::<bool>().prop_map(H::Suspend),
        1 => (0u8..3).prop_map(H::Template),
        1 => (0usize..9).prop_map(H::Room),
        1 => (0usize..9).prop_map(H::Quota),
        1 => any::<bool>().prop_map(H::Gateway),
        1 => (0u64..60_000).prop_map(H::StopTime),
        1 => any::<bool>().prop_map(H::LoseStatus),
        1 => Just(H::LoseRecords),
        2 => (0usize..8, 1u64..1000).prop_map(|(at, step)| H::Checkpoint(at, step)),
        3 => (0usize..8, 1u64..1000).prop_map(|(at, step)| H::Progress(at, step)),
    ]
}

impl AgentWorld {
    fn happen(&mut self, what: &Happening) {
        let now = self.now;
        match what {
            Happening::Operate => {
                self.operate(usize::MAX);
            }
            Happening::CrashAfter(steps) => {
                self.operate(*steps);
            }
            Happening::Pass(ms, hear) => {
                self.pass(std::time::Duration::from_millis(*ms), *hear);
                self.bring_gateway_back();
            }
            Happening::Exit(at, code) => self.exit(*at, *code),
            Happening::KillContainer(at) => self.kill_container(*at),
            Happening::Evict(at) => self.evict(*at),
            Happening::DeletePod(at) => {
                if let Some(p) = self.pick(*at) {
                    p.deleting.get_or_insert(now);
                }
            }
            Happening::Disrupt(at) => {
                if let Some(p) = self.pick(*at) {
                    p.disrupted = true;
                }
            }
            Happening::LoseNode(at) => {
                if let Some(node) = self.pick(*at).and_then(|p| p.node.clone()) {
                    self.sick.insert(node);
                }
            }
            Happening::Announce(at, ms) => self.announce(*at, ms.map(std::time::Duration::from_millis)),
            Happening::Withdraw => self.leaving.clear(),
            Happening::Cut(at) => {
                if let Some(uid) = self.pick(*at).map(|p| p.uid.clone()) {
                    self.cut.insert(uid);
                }
            }
            Happening::Heal => self.cut.clear(),
            Happening::Resize(n) => {
                self.job.replicas = (*n).clamp(self.job.min, self.job.max);
                self.job.generation += 1;
            }
            Happening::Suspend(yes) => self.job.suspend = *yes,
            Happening::Template(n) => self.job.template.as_mut().unwrap().hash = format!("t{n}"),
            Happening::Room(n) => self.room = *n,
            Happening::Quota(n) => self.quota = *n,
            Happening::Gateway(up) => {
                self.gateway = *up;
                self.gateway_since = now;
            }
            Happening::StopTime(ms) => self.stop_time = std::time::Duration::from_millis(*ms),
            Happening::LoseStatus(read) => {
                if !self.state.phase.is_terminal() {
                    let group = (*read && self.gateway).then_some(&self.group);
                    self.state = recover(&self.job, &self.pods, group, now);
                    // What was decided is lost with it.
                    self.doomed.clear();
                }
            }
            Happening::LoseRecords => self.group.members.clear(),
            Happening::Checkpoint(at, step) => self.checkpoint(*at, *step),
            Happening::Progress(at, step) => self.progress(*at, *step),
        }
    }

    /// A job that begins goes on without agents when etcd is away for long: that is a story of its own.
    fn bring_gateway_back(&mut self) {
        self.gateway |= self.now.since(self.gateway_since) > GATEWAY_PATIENCE / 2;
    }

    pub(crate) fn evict(&mut self, at: usize) {
        let Some(p) = self.pick(at).filter(|p| p.phase == WorkerPhase::Running) else { return };
        (p.phase, p.reason) = (WorkerPhase::Failed, Some("Evicted".into()));
        let uid = p.uid.clone();
        self.containers.remove(&uid);
    }

    pub(crate) fn announce(&mut self, at: usize, left: Option<std::time::Duration>) {
        let by = left.map(|left| self.now.plus(left));
        let Some(uid) = self.pick(at).map(|p| p.uid.clone()) else { return };
        self.leaving.insert(uid, Announced { why: "taint drain of node n".into(), by });
    }

    pub(crate) fn progress(&mut self, at: usize, step: u64) {
        self.progress_until_next(at, step, None);
    }

    /// So does the time that may pass until the next report, in milliseconds.
    pub(crate) fn progress_until_next(&mut self, at: usize, step: u64, next_ms: Option<u64>) {
        let now = self.now.0;
        let Some(uid) = self.pick(at).map(|p| p.uid.clone()) else { return };
        if let Some(container) = self.containers.get_mut(&uid) {
            let told = Progress { step, next_ms, ..Progress::default() };
            container.agent.step(eto_membership::agent::Event::ProgressTold(told), now);
        }
    }

    pub(crate) fn checkpoint(&mut self, at: usize, step: u64) {
        let now = self.now.0;
        let Some(uid) = self.pick(at).map(|p| p.uid.clone()) else { return };
        if let Some(container) = self.containers.get_mut(&uid) {
            let told = eto_membership::agent::Event::CheckpointTold { generation: None, step };
            container.agent.step(told, now);
        }
    }
}

fn any_job() -> impl Strategy<Value = JobSpec> {
    let restart = prop_oneof![3 => Just(RestartPolicy::OnFailure), 1 => Just(RestartPolicy::Never), 1 => Just(RestartPolicy::ExitCode)];
    let hang = prop_oneof![1 => Just(None), 1 => (1u64..120).prop_map(|s| Some(secs(s)))];
    let mode = prop_oneof![Just(ElasticityMode::Rounds), Just(ElasticityMode::Native)];
    let scope = prop_oneof![2 => Just(RestartScope::Group), 1 => Just(RestartScope::Pod)];
    let sizes = (1u32..4, 0u32..4, 0u32..5);
    let types = prop_oneof![3 => Just(0), 1 => 1u32..3];
    let way = (restart, mode, scope);
    (sizes, types, way, 0u32..8, hang).prop_map(|((min, more, most), types, (restart, mode, scope), limit, hang)| {
        let mut spec = job(min, min + more, min + more + most);
        if (1..min).contains(&types) {
            spec = job_with(&[("ps", types)], min, min + more, min + more + most);
        }
        (spec.elasticity.mode, spec.elasticity.restart_scope) = (mode, scope);
        (spec.restart, spec.backoff_limit, spec.elasticity.hang_timeout) = (restart, limit, hang);
        spec
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_all_members_train_together_in_the_end(
        spec in any_job(),
        story in proptest::collection::vec(happening(), 0..80),
    ) {
        let mut world = AgentWorld::new(spec);
        for what in &story {
            world.happen(what);
        }
        // It stops happening.
        (world.room, world.quota, world.gateway) = (64, 64, true);
        world.cut.clear();
        world.stop_time = secs(2);
        world.job.suspend = false;
        prop_assert!(world.settle(), "it does not come to rest: {:?} {:?}", world.state, world.pods);
        world.check_settled();
    }

    #[test]
    fn with_too_little_room_a_job_is_as_large_as_it_can_be_or_waits_as_a_whole(
        spec in any_job(),
        room in 1usize..9,
    ) {
        let (min, wanted) = (spec.min, spec.replicas);
        let mut world = AgentWorld::new(spec);
        world.room = room;
        for _ in 0..200 {
            world.operate(usize::MAX);
            world.pass(secs(5), u16::MAX);
        }
        let fits = u32::try_from(room).unwrap();
        if fits >= min {
            prop_assert_eq!(world.state.target, wanted.min(fits));
            world.check_settled();
        } else {
            prop_assert_eq!(world.state.target, wanted);
            prop_assert!(world.starts.is_empty(), "nobody trains alone");
            prop_assert!(world.state.start_attempts > 0, "it was tried again");
        }
    }

    /// The operator ends at every step of a resize in turn; the resize is done all the same.
    #[test]
    fn a_crash_at_any_step_of_a_resize_changes_nothing(
        from in 1u32..6,
        to in 1u32..6,
        at in 0usize..12,
        steps in 0usize..5,
        mode in prop_oneof![Just(ElasticityMode::Rounds), Just(ElasticityMode::Native)],
    ) {
        let mut spec = job(1, from, 6);
        spec.elasticity.mode = mode;
        let mut world = AgentWorld::running(spec);
        world.job.replicas = to;
        for second in 0..30 {
            world.operate(if second == at { steps } else { usize::MAX });
            world.pass(secs(1), u16::MAX);
        }
        prop_assert!(world.settle());
        world.check_settled();
        prop_assert_eq!(world.state.phase, Phase::Running);
        prop_assert_eq!(world.generation(), if from == to { 1 } else { 2 }, "one change, one round");
    }
}
