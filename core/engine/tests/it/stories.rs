//! Whatever happens to a job, once it stops happening the job ends with exactly the right pods or in a terminal phase.

use std::time::Duration;

use eto_engine::contract::{Framework, Readiness, WorkerPhase};
use eto_engine::job::{Behavior, JobSpec, RestartPolicy, ScalingRules, ScalingSpec, SelectPolicy};
use eto_engine::observe::Pod;
use eto_engine::plan::{apply, recover};
use eto_engine::signals::SignalSet;
use eto_engine::state::Phase;
use eto_engine::{guard, view};
use proptest::prelude::*;

use crate::common::{ANY_ROOM, job, native, scaling, secs};
use crate::world::World;

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
                    self.state = recover(&self.job, &self.pods, None, self.now);
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
    let types = prop_oneof![3 => Just(0), 1 => 1u32..3];
    (1u32..4, 0u32..4, 0u32..5, types, restart, 0u32..8).prop_map(|(min, more, most, types, restart, limit)| {
        let mut spec = job(min, min + more, min + more + most);
        if (1..min).contains(&types) {
            spec.types = crate::common::job_with(&[("ps", types)], min, min, min).types;
        }
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
        world.job.types = eto_engine::job::ReplicaTypes::default();
        world.job.ttl_after_finished = Some(secs(60));
        for _ in 0..10 {
            world.operate(usize::MAX);
            world.pass(secs(5));
        }
        world.pods.iter_mut().filter(|p| p.index == 0).for_each(|p| p.phase = WorkerPhase::Succeeded);
        prop_assert!(world.settle());
        prop_assert_eq!(world.state.phase, Phase::Succeeded);
        prop_assert_eq!(world.pods.len(), 1, "what still ran is gone, the master stays for its log");
        prop_assert!(world.deleted, "the job itself goes when its time to live has passed");
    }
}
