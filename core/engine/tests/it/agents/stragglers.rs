//! Members that are slower than the others.

use eto_engine::plan::{AgentFacts, Event, EventReason, PlanFacts, Stragglers, plan};
use eto_engine::state::{ChangeKind, LossClass, Straggler};

use super::world::AgentWorld;
use crate::common::{job, secs};

/// A world in which members tell how long their own part of a step takes, in milliseconds.
struct Watched {
    world: AgentWorld,
    seen: Option<Stragglers>,
    events: Vec<Event>,
}

impl Watched {
    fn new(workers: u32) -> Self {
        Watched { world: AgentWorld::running(job(1, workers, 9)), seen: None, events: vec![] }
    }

    /// So many looks of 30 s.
    fn look(&mut self, times: u32, work_ms: &[u64]) {
        for _ in 0..times {
            self.world.pass(secs(30), u16::MAX);
            for (pod, ms) in self.world.pods.iter().zip(work_ms) {
                let record = self.world.group.members.get_mut(&pod.uid).unwrap();
                record.report.step_work_us = (*ms > 0).then_some(ms * 1000);
            }
            let (state, now) = (&self.world.state, self.world.now);
            self.seen = Stragglers::next(self.seen.as_ref(), state, Some(&self.world.group), now);
            let facts = PlanFacts {
                group: Some(&self.world.group),
                agent: AgentFacts { gateway: true },
                stragglers: self.seen.as_ref(),
                ..PlanFacts::default()
            };
            let plan = plan(&self.world.job, state, &self.world.pods, &facts, now);
            assert!(plan.actions.is_empty(), "it is told of, and no more: {:?}", plan.actions);
            self.world.state = plan.state;
            self.events.extend(plan.events.into_iter().filter(|e| e.reason == EventReason::Straggler));
        }
    }

    fn slow(&self) -> Vec<&str> {
        self.world.state.stragglers.iter().map(|s| s.pod.as_str()).collect()
    }
}

#[test]
fn a_member_that_is_slow_for_long_is_told_of_once_and_forgotten_when_it_is_not() {
    let mut w = Watched::new(4);
    w.look(10, &[10, 10, 18, 11]);
    assert!(w.slow().is_empty(), "not yet five minutes");
    w.look(30, &[10, 10, 18, 11]);
    assert_eq!((w.slow(), w.events.len()), (vec![w.world.pods[2].name.as_str()], 1));
    assert!(w.events[0].message.contains("worker 2 on") && w.events[0].warning, "{:?}", w.events);
    let before = w.world.state.clone();
    w.look(5, &[10, 10, 15, 11]);
    assert_eq!(w.world.state, before, "a little better is no news, so nothing is written");
    // An operator that starts again does not forget it.
    w.seen = None;
    w.look(3, &[10, 10, 18, 11]);
    assert_eq!((w.slow().len(), w.events.len()), (1, 1));
    w.look(1, &[10, 10, 12, 11]);
    assert!(w.slow().is_empty());
}

/// docs/faults.md names these: 150 % of the median member's time for five minutes, until it takes less than 130 %.
#[test]
fn the_boundaries_are_as_told() {
    let mut w = Watched::new(3);
    w.look(30, &[100, 149, 100]);
    assert!(w.slow().is_empty());
    w.look(10, &[100, 150, 100]);
    assert!(w.slow().is_empty(), "four and a half minutes");
    w.look(1, &[100, 150, 100]);
    assert_eq!((w.slow().len(), w.events.len()), (1, 1), "five");
    w.look(3, &[100, 130, 100]);
    assert_eq!(w.slow().len(), 1);
    w.look(1, &[100, 129, 100]);
    assert!(w.slow().is_empty());
}

#[test]
fn a_break_starts_the_time_anew() {
    let mut w = Watched::new(3);
    for _ in 0..10 {
        w.look(9, &[10, 20, 10]);
        w.look(1, &[10, 10, 10]);
    }
    assert!(w.slow().is_empty());
}

#[test]
fn two_members_or_those_that_tell_nothing_have_no_straggler() {
    for (workers, work) in [(2, &[10, 90][..]), (4, &[0, 90, 10, 0]), (4, &[0, 0, 0, 0])] {
        let mut w = Watched::new(workers);
        w.look(30, work);
        assert!(w.slow().is_empty() && w.seen.is_none(), "{work:?}");
    }
    // Half of them: nobody is far from the middle.
    let mut w = Watched::new(4);
    w.look(30, &[10, 10, 90, 90]);
    assert!(w.slow().is_empty());
}

/// A world whose worker 2 has been slow for long.
fn with_straggler(min: u32, index: usize) -> AgentWorld {
    let mut spec = job(min, 4, 9);
    spec.elasticity.replace_stragglers = true;
    let mut world = AgentWorld::running(spec);
    let pod = &world.pods[index];
    world.state.stragglers = vec![Straggler { pod: pod.name.clone(), uid: pod.uid.clone(), since: world.now }];
    world
}

#[test]
fn it_is_replaced_where_the_job_wants_it_at_a_boundary_and_not_often() {
    let mut world = with_straggler(1, 2);
    let slow = world.pods[2].clone();
    world.go(1700);
    assert_eq!(world.generation(), 1, "the round has run for less than half an hour");
    world.checkpoint(0, 100);
    world.pass(secs(1), u16::MAX);
    world.go(110);
    assert_eq!(world.generation(), 1, "a newer checkpoint is waited for");
    world.checkpoint(0, 200);
    world.go(30);
    world.check_settled();
    assert!(world.pods.iter().all(|p| p.uid != slow.uid));
    assert_eq!((world.state.failures, world.state.disruptions, world.state.stragglers.len()), (0, 0, 0));
    let e = world.state.history.iter().find(|e| e.loss == Some(LossClass::Straggler)).unwrap();
    assert_eq!((e.kind, e.from, e.to, &e.left[..]), (ChangeKind::Replacement, 4, 4, &[slow.name][..]));
}

#[test]
fn the_master_and_who_can_not_be_spared_are_only_told_of() {
    for (min, index) in [(1, 0), (4, 2)] {
        let mut world = with_straggler(min, index);
        world.go(2000);
        assert_eq!((world.generation(), world.state.stragglers.len()), (1, 1), "min {min}, worker {index}");
    }
}
