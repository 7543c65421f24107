use std::cell::{Cell, RefCell};
use std::rc::Rc;

use eto_engine::contract::{Capacity, Direction, ScalingDecision, SignalWant};
use eto_engine::decision::{Decision, Limiter};
use eto_engine::guard;
use eto_engine::job::{FailurePolicy, LegalSizes, Mode};
use eto_engine::policy::{CallFailure, FailureKind};
use eto_engine::state::{ConditionKind, ConditionReason, ResizeCost, ResizeRecord};
use eto_engine::{conditions, plan};

use crate::common::*;

fn by(d: &Decision) -> Vec<Limiter> {
    d.limits.iter().map(|l| l.by).collect()
}

/// A job of 4 (2 to 8) whose module's proposals have agreed for long.
fn look(replicas: u32, want: Option<SignalWant>, values: &[f64]) -> Look {
    let mut spec = job(2, replicas, 8);
    spec.scaling = Some(scaling(vec![], true));
    let mut look = Look::new(spec, replicas, want.into_iter().collect(), values);
    look.memory.recommendations = vec![(ago(3600), replicas)];
    look
}

fn want(direction: Direction) -> SignalWant {
    SignalWant {
        name: "cpu-utilisation".into(),
        query: None,
        window_seconds: 60,
        history_seconds: 0,
        required: true,
        direction,
        low: 0.0,
        high: 1.0,
    }
}

#[test]
fn a_module_jumps_when_its_proposals_agree_for_a_minute() {
    let mut look = look(2, None, &[]);
    let grow = native(|_| Some(8));
    look.memory.recommendations.clear();
    assert_eq!((look.decide(&grow).target, look.memory.recommendations.len()), (2, 2));
    assert_eq!(by(&look.at(NOW.plus(secs(45))).decide(&grow)), [Limiter::ScaleUpStabilized]);
    assert_eq!(look.at(NOW.plus(secs(75))).decide(&grow).target, 8, "in one jump");
}

#[test]
fn an_answer_is_rounded_to_a_legal_size() {
    for (legal, from, to, want) in [
        (LegalSizes::MultipleOf(2), 2, 7, 6),
        (LegalSizes::MultipleOf(4), 8, 5, 8),
        (LegalSizes::List(vec![2, 4, 8]), 4, 7, 4),
        (LegalSizes::List(vec![2, 4, 8]), 8, 3, 4),
    ] {
        let mut look = look(from, None, &[]);
        look.job.legal = legal;
        let d = look.decide(&native(move |_| Some(to)));
        assert_eq!((d.target, by(&d)), (want, vec![Limiter::LegalSize]), "{from} -> {to}");
    }
}

#[test]
fn a_shrink_needs_the_worst_case_and_a_growth_the_best() {
    // Two of four workers have a sample: 0.1 cores of 1. Missing ones may be at 100 %.
    let mut shrink = look(4, Some(want(Direction::MoreMeansGrow)), &[0.1, 0.1]);
    let mean = || {
        native(|i| {
            let s = &i.signals[0];
            let sum: f64 = s.values.iter().sum();
            let n: f64 = s.sampled_ms.iter().map(|t| f64::from(u8::from(*t > 0))).sum();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Some((sum / n / 0.5 * f64::from(i.sizes.target)).ceil() as u32)
        })
    };
    let d = shrink.decide(&mean());
    assert_eq!((d.proposed, d.target, by(&d)), (Some(1), 4, vec![Limiter::SignalQuality]));
    assert_eq!(d.fuel, 20, "it was asked twice");
    // High samples, missing ones may be at 0: (0.9 + 0.9) / 4 is below the target.
    let mut grow = look(4, Some(want(Direction::MoreMeansGrow)), &[0.9, 0.9]);
    let d = grow.decide(&mean());
    assert_eq!((d.proposed, d.target, by(&d)), (Some(8), 4, vec![Limiter::SignalQuality]));
    // Three of four at 100 %: even the best case asks for 6.
    let mut grow = look(4, Some(want(Direction::MoreMeansGrow)), &[1.0, 1.0, 1.0]);
    assert_eq!(grow.decide(&mean()).target, 6);
}

#[test]
fn a_signal_that_says_neither_holds_when_it_is_not_ok() {
    for (direction, required, target, limits) in [
        (Direction::None, true, 4, vec![Limiter::SignalHold]),
        (Direction::None, false, 2, vec![]),
        (Direction::MoreMeansGrow, false, 2, vec![]),
    ] {
        let mut look = look(4, Some(SignalWant { required, ..want(direction) }), &[0.1]);
        let d = look.decide(&native(|_| Some(2)));
        assert_eq!((d.target, by(&d)), (target, limits), "{direction:?} {required}");
    }
}

#[test]
fn no_shrink_before_a_source_has_been_back_for_a_window() {
    let mut look = look(4, Some(want(Direction::MoreMeansGrow)), &[0.1; 4]);
    let shrink = native(|_| Some(2));
    for (healthy_since, target) in [(None, 4), (Some(ago(30)), 4), (Some(ago(60)), 2)] {
        look.signals.signals.values_mut().for_each(|d| d.healthy_since = healthy_since);
        let d = look.decide(&shrink);
        assert_eq!(d.target, target, "{healthy_since:?}");
        assert_eq!(by(&d).contains(&Limiter::SourceRecovering), target == 4);
    }
    look.signals.signals.values_mut().for_each(|d| d.healthy_since = None);
    look.memory.recommendations = vec![(ago(3600), 4)];
    assert_eq!(look.decide(&native(|_| Some(6))).target, 6, "growing is not held");
}

#[test]
fn no_shrink_while_the_memory_is_younger_than_the_window() {
    let mut look = look(4, None, &[]);
    look.memory.since = ago(200);
    let d = look.decide(&native(|_| Some(2)));
    assert_eq!((d.target, by(&d)), (4, vec![Limiter::StateRecovering]));
    assert_eq!(d.limits[0].until, Some(ago(200).plus(secs(300))));
    look.memory.since = ago(300);
    assert_eq!(look.decide(&native(|_| Some(2))).target, 2);
}

#[test]
fn one_resize_at_a_time_and_a_pause_as_long_as_it_took() {
    let mut look = look(4, None, &[]);
    let record = |done| ResizeRecord { done, ..ResizeRecord::new(2, 4, ago(100)) };
    look.state.last_resize = Some(record(None));
    assert_eq!(by(&look.decide(&native(|_| Some(8)))), [Limiter::ResizeInFlight]);
    // It took 60 s and was done 40 s ago.
    look.state.last_resize = Some(record(Some(ago(40))));
    let d = look.decide(&native(|_| Some(8)));
    assert_eq!((d.target, by(&d), d.limits[0].until), (4, vec![Limiter::CoolDown], Some(NOW.plus(secs(20)))));
    assert_eq!(look.at(NOW.plus(secs(20))).decide(&native(|_| Some(8))).target, 8);
    look.state.last_resize = None;
    look.state.round.as_mut().unwrap().running_since = None;
    assert_eq!(by(&look.decide(&native(|_| Some(8)))), [Limiter::ResizeInFlight], "the round does not run");
}

#[test]
fn a_policy_is_told_what_the_last_resize_cost() {
    let mut look = look(4, None, &[]);
    let told = |look: &mut Look, cost| {
        look.state.last_resize = Some(ResizeRecord { done: Some(ago(40)), cost, ..ResizeRecord::new(2, 4, ago(100)) });
        let resize = look.view().input.resize;
        (resize.last_cost_ms, resize.last_steps_lost)
    };
    assert_eq!(told(&mut look, Some(ResizeCost { paused_ms: 2500, steps_lost: Some(12) })), (2500, Some(12)));
    assert_eq!(told(&mut look, Some(ResizeCost { paused_ms: 2500, steps_lost: None })), (2500, None));
    assert_eq!(told(&mut look, None), (60_000, None), "from its decision to its end");
    look.state.last_resize = None;
    assert_eq!(look.view().input.resize.last_steps_lost, None);
}

#[test]
fn a_job_that_waits_for_its_template_is_sized_all_the_same() {
    let mut look = look(4, None, &[]);
    look.job.template = None;
    look.state.round = None;
    look.pods.clear();
    for size in [8, 2, 6] {
        let d = look.decide(&native(move |_| Some(size)));
        let moved = plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW);
        assert_eq!((d.target, by(&d), moved, look.state.target), (size, vec![], true, size));
        assert_eq!(look.state.last_resize, None, "there is nothing to resize, so nothing in flight");
        look.memory.recommendations = vec![(ago(3600), size)];
    }
    let p = plan::plan(&look.job, &look.state, &[], &plan::PlanFacts::default(), NOW);
    assert_eq!((p.state.target, p.actions), (6, vec![]), "and no pod is made");
}

/// Five minutes after the first refusal, twice as long after each further one in a row, an hour at most.
#[test]
fn a_growth_that_was_taken_back_is_tried_again_after_a_pause_that_doubles() {
    for (refusals, pause) in [(1, 300), (2, 600), (4, 2400), (5, 3600), (9, 3600)] {
        for (since, held) in [(pause - 1, true), (pause, false)] {
            let mut look = look(4, None, &[]);
            let record = ResizeRecord::new(8, 4, ago(since));
            look.state.last_resize = Some(ResizeRecord { done: Some(ago(since)), refused: true, refusals, ..record });
            let limits = by(&look.decide(&native(|_| Some(8))));
            assert_eq!(limits.contains(&Limiter::GrowthRefused), held, "{refusals} refusals, {since} s ago");
        }
    }
}

#[test]
fn a_growth_that_was_taken_back_is_not_tried_at_once() {
    let mut look = look(4, None, &[]);
    let record =
        |refusals| ResizeRecord { done: Some(ago(400)), refused: true, refusals, ..ResizeRecord::new(8, 4, ago(400)) };
    look.state.last_resize = Some(record(2));
    assert_eq!(by(&look.decide(&native(|_| Some(8)))), [Limiter::GrowthRefused], "the second time: 10 minutes");
    look.memory.recommendations = vec![(ago(3600), 4)];
    assert_eq!(look.decide(&native(|_| Some(2))).target, 2, "shrinking is not held");
    look.memory.recommendations = vec![(ago(3600), 4)];
    look.state.last_resize = Some(record(1));
    assert_eq!(look.decide(&native(|_| Some(8))).target, 8);
    assert!(look.view().input.resize.last_refused, "the policy is told");
}

#[test]
fn recommend_shows_and_does_not_act() {
    let mut look = look(4, None, &[]);
    look.job.scaling.as_mut().unwrap().mode = Mode::Recommend;
    let d = look.decide(&native(|_| Some(8)));
    assert_eq!((d.target, d.apply, by(&d)), (8, false, vec![Limiter::RecommendOnly]));
    assert!(!plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW));
    assert_eq!(look.state.target, 4);
}

#[test]
fn a_late_answer_is_dropped() {
    let mut look = look(4, None, &[]);
    let d = look.decide(&native(|_| Some(8)));
    assert!(guard::accept(&d, &look.job, &look.memory));
    let mut other = look.job.clone();
    other.uid = "uid-2".into();
    assert!(!guard::accept(&d, &other, &look.memory), "another job of that name");
    other = look.job.clone();
    other.generation += 1;
    assert!(!guard::accept(&d, &other, &look.memory), "another spec");
    let later = look.decide(&native(|_| None));
    assert!(!guard::accept(&d, &look.job, &look.memory), "a later decision was made");
    assert!(guard::accept(&later, &look.job, &look.memory));
    assert!(!plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW));
}

#[test]
fn three_failures_open_the_circuit_of_this_digest_alone() {
    let mut look = look(4, None, &[]);
    let calls = Rc::new(Cell::new(0));
    let count = Rc::clone(&calls);
    let bad = fallible(move |_| {
        count.set(count.get() + 1);
        Err(trap())
    });
    for n in 1..=3 {
        let d = look.decide(&bad);
        assert_eq!((d.target, d.failure.unwrap().in_a_row), (4, n));
    }
    let d = look.decide(&bad);
    assert_eq!((calls.get(), by(&d)), (3, vec![Limiter::CircuitOpen]));
    let healthy = conditions::scaling(&look.job, &d, NOW).into_iter().find(|c| c.kind == ConditionKind::PolicyHealthy);
    assert_eq!(healthy.unwrap().reason, ConditionReason::CircuitOpen);
    // Half open after a minute, then closed for two.
    look.at(NOW.plus(secs(60))).decide(&bad);
    look.at(NOW.plus(secs(179))).decide(&bad);
    assert_eq!(calls.get(), 4);
    // Another version is asked at once; its answer does not close the old circuit.
    let mut good = native(|_| Some(8));
    good.id.digest = "sha256:2".into();
    assert_eq!(look.decide(&good).target, 8);
    look.decide(&bad);
    assert_eq!(calls.get(), 4);
    // A half-open try that works closes it.
    good.id.digest = "sha256:1".into();
    assert_eq!(look.at(NOW.plus(secs(180))).decide(&good).target, 8);
    assert!(look.memory.circuits.is_empty());
}

#[test]
fn a_changed_spec_is_tried_at_once_and_once_while_the_circuit_is_open() {
    let mut look = look(4, None, &[]);
    let calls = Rc::new(Cell::new(0));
    let count = Rc::clone(&calls);
    let bad = fallible(move |_| {
        count.set(count.get() + 1);
        Err(trap())
    });
    (0..5).for_each(|_| drop(look.decide(&bad)));
    assert_eq!(calls.get(), 3);
    look.job.generation += 1;
    look.decide(&bad);
    let still = look.decide(&bad);
    assert_eq!((calls.get(), by(&still)), (4, vec![Limiter::CircuitOpen]), "it was not the mend");
    look.job.generation += 1;
    let mended = look.decide(&native(|_| Some(8)));
    assert_eq!((mended.target, look.memory.circuits.len()), (8, 0));
}

#[test]
fn what_the_owner_has_to_mend_is_not_a_fault_of_the_policy() {
    for kind in [FailureKind::UnusableInput, FailureKind::InvalidConfig] {
        let mut look = look(4, None, &[]);
        let bad = fallible(move |_| Err(CallFailure { kind, message: "set x".into() }));
        for _ in 0..5 {
            assert_eq!(look.decide(&bad).limits, []);
        }
        assert!(look.memory.circuits.is_empty());
    }
}

#[test]
fn a_missing_module_holds_and_is_named() {
    let mut look = look(4, None, &[]);
    let missing = CallFailure { kind: FailureKind::Missing, message: "no module \"mine\"".into() };
    let view = look.view();
    let d = guard::decide(&look.job, &look.state, &mut look.memory, &view, Err(missing), None, NOW);
    assert_eq!((d.target, d.answered), (4, false));
    let all = conditions::scaling(&look.job, &d, NOW);
    let reason = |kind| all.iter().find(|c| c.kind == kind).map(|c| (c.status, c.reason)).unwrap();
    assert_eq!(reason(ConditionKind::PolicyHealthy), (false, ConditionReason::PolicyMissing));
    assert_eq!(reason(ConditionKind::ScalingActive), (false, ConditionReason::PolicyMissing));
}

#[test]
fn the_built_in_policy_stands_in_where_the_job_wants_it() {
    let mut look = look(4, None, &[]);
    let s = look.job.scaling.as_mut().unwrap();
    s.on_failure = FailurePolicy::BuiltIn;
    s.metrics = vec![cpu(50)];
    s.config = r#"{"own":1}"#.into();
    let values: Vec<(String, f64)> = look.pods.iter().map(|p| (p.name.clone(), 1.0)).collect();
    let values: Vec<(&str, f64)> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    look.signals = signals(&look.job, &[], &values);
    let bad = fallible(|_| Err(trap()));
    let hpa = native(|i| (i.config == "{}").then_some(8));
    let view = look.view();
    let d = guard::decide(&look.job, &look.state, &mut look.memory, &view, Ok(&bad), Some(&hpa), NOW);
    assert_eq!((d.target, d.answered, d.failure.is_some()), (8, true, true));
    let all = conditions::scaling(&look.job, &d, NOW);
    let status = |kind| all.iter().find(|c| c.kind == kind).unwrap().status;
    assert!(status(ConditionKind::ScalingActive) && !status(ConditionKind::PolicyHealthy));
}

#[test]
fn a_policy_gets_its_own_state_back_in_its_own_layout() {
    let mut look = look(4, None, &[]);
    let seen = Rc::new(RefCell::new(vec![]));
    let log = Rc::clone(&seen);
    let mut policy = fallible(move |i| {
        log.borrow_mut().push(i.state.clone().map(|s| (s.version, s.bytes)));
        Ok(ScalingDecision { state: Some(vec![7]), ..decision(None) })
    });
    look.decide(&policy);
    look.decide(&policy);
    policy.state_version = 2;
    look.decide(&policy);
    policy.state_version = 0;
    look.decide(&policy);
    policy.id.name = "another".into();
    policy.state_version = 2;
    look.decide(&policy);
    let want = [None, Some((1, vec![7])), Some((2, vec![7, 1])), None, None];
    assert_eq!(*seen.borrow(), want);
}

#[test]
fn by_hand_nobody_is_asked_and_a_refused_growth_is_tried_again_when_there_is_room() {
    let panic = fallible(|_| panic!("nobody is asked"));
    for mode in [None, Some(Mode::Off)] {
        let mut look = look(4, None, &[]);
        match mode {
            None => look.job.scaling = None,
            Some(mode) => look.job.scaling.as_mut().unwrap().mode = mode,
        }
        assert_eq!(look.decide(&panic).target, 4);
        // 4 were wanted, 3 could start.
        look.state.target = 3;
        look.state.round.as_mut().unwrap().size = 3;
        let done = Some(ago(100));
        let record = ResizeRecord { done, refused: true, refusals: 1, ..ResizeRecord::new(4, 3, ago(100)) };
        look.state.last_resize = Some(record);
        assert_eq!(by(&look.decide(&panic)), [Limiter::GrowthRefused]);
        look.at(NOW.plus(secs(300)));
        look.capacity = Capacity { fits: 0, pending: 0 };
        assert_eq!(look.decide(&panic).target, 3);
        look.capacity = Capacity { fits: 1, pending: 0 };
        assert_eq!(look.decide(&panic).target, 4);
        // A target above spec.replicas (rebuilt from live pods) is not taken back.
        look.state.target = 6;
        assert_eq!(look.decide(&panic).target, 6);
    }
}

#[test]
fn the_looks_at_a_job_follow_its_limits() {
    let mut look = look(4, None, &[]);
    let d = look.decide(&fallible(|_| Ok(ScalingDecision { next_look_seconds: Some(5), ..decision(None) })));
    assert_eq!(d.next_look, Some(NOW.plus(secs(5))));
}

#[test]
fn a_size_set_by_the_user_stands_for_a_window() {
    let mut look = look(3, None, &[]);
    look.job.scaling.as_mut().unwrap().own_module = false;
    assert_eq!(look.decide(&native(|_| Some(3))).target, 3);
    look.job.replicas = 6;
    let d = look.at(NOW.plus(secs(15))).decide(&native(|_| Some(3)));
    assert_eq!((d.from, d.target, by(&d)), (6, 6, vec![Limiter::ScaleDownStabilized]));
    assert_eq!(look.at(NOW.plus(secs(314))).decide(&native(|_| Some(3))).target, 6);
    assert_eq!(look.at(NOW.plus(secs(316))).decide(&native(|_| Some(3))).target, 3);
}
