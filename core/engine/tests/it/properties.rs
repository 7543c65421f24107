//! What holds for every input of the guard.

use eto_engine::contract::{MetricKind, MetricTarget};
use eto_engine::guard::sizes;
use eto_engine::job::LegalSizes;
use eto_engine::plan;
use proptest::prelude::*;

use crate::common::*;

/// Utilisation targets with samples of which some are missing, old or broken.
#[derive(Clone, Debug)]
enum Level {
    Good(f64),
    Missing,
    Old(f64),
    Broken(f64),
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![
        5 => (0.0..2.0f64).prop_map(Level::Good),
        1 => Just(Level::Missing),
        1 => (0.0..2.0f64).prop_map(Level::Old),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)].prop_map(Level::Broken),
    ]
}

fn measured(levels: &[Level], target: u32) -> Look {
    let size = u32::try_from(levels.len()).unwrap();
    let mut spec = job(1, size, 20);
    spec.scaling = Some(scaling(vec![cpu(target)], false));
    let mut look = Look::new(spec, size, vec![], &[]);
    look.memory.recommendations = vec![(ago(3600), size)];
    let data = look.signals.signals.values_mut().next().unwrap();
    let samples = data.per_pod.get_mut("team-a").unwrap();
    for (pod, level) in look.pods.iter().zip(levels) {
        let (value, at) = match level {
            Level::Good(v) | Level::Broken(v) => (*v, NOW),
            Level::Old(v) => (*v, ago(1000)),
            Level::Missing => continue,
        };
        samples.insert(pod.name.clone(), eto_engine::signals::Sample { value, at });
    }
    look
}

proptest! {
    #[test]
    fn never_outside_the_bounds_or_at_an_illegal_size(
        (min, more, most) in (1u32..5, 0u32..5, 0u32..5),
        target in 0u32..30,
        answer in prop_oneof![Just(None), (0u32..200_000).prop_map(Some)],
        legal in prop_oneof![
            Just(LegalSizes::Any),
            (0u32..5).prop_map(LegalSizes::MultipleOf),
            Just(LegalSizes::List(vec![2, 3, 5, 8])),
        ],
        module in any::<bool>(),
    ) {
        let mut spec = job(min, min + more, min + more + most);
        spec.legal = legal;
        spec.scaling = Some(scaling(vec![], module));
        let mut look = Look::new(spec, min + more, vec![], &[]);
        look.state.target = target;
        look.memory.recommendations = vec![(ago(3600), target)];
        let d = look.decide(&native(move |_| answer));
        prop_assert!((look.job.min..=look.job.max).contains(&d.target));
        let legal = sizes::legal(&look.job);
        prop_assert!(legal.is_empty() || legal.contains(&d.target), "{} of {:?}", d.target, legal);
        plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW);
        prop_assert!(target == 0 || (look.job.min..=look.job.max).contains(&look.state.target));
    }

    /// Whatever the samples that are missing would have been, they would not have asked for more than what a shrink
    /// leaves, nor for less than what a growth reaches.
    #[test]
    fn absent_is_not_zero(
        levels in proptest::collection::vec(level(), 1..12),
        target in 20u32..120,
        truth in proptest::collection::vec(0.0..1.0f64, 12),
    ) {
        let mut look = measured(&levels, target);
        let from = look.state.target;
        let d = look.decide(&ratio_policy());
        if levels.iter().all(|l| !matches!(l, Level::Good(_))) {
            prop_assert_eq!(d.target, from, "nothing is known");
        }
        let most = f64::from(target.max(100)) / 100.0;
        let completed: Vec<Level> = levels.iter().zip(&truth).map(|(l, t)| match l {
            Level::Good(v) => Level::Good(*v),
            _ => Level::Good(t * most),
        }).collect();
        let mut full = measured(&completed, target);
        let sure = full.decide(&ratio_policy()).proposed.unwrap_or(from);
        if d.target < from {
            prop_assert!(sure <= d.target.max(1), "shrunk to {} of {from}, the truth asks for {sure}", d.target);
        }
        if d.target > from {
            prop_assert!(sure >= d.target, "grown to {} of {from}, the truth asks for {sure}", d.target);
        }
    }

    #[test]
    fn never_against_the_direction_of_all_signals(
        cpu_level in 0.0..2.0f64,
        queue in 0.0..2.0f64,
        size in 1u32..10,
        before in proptest::collection::vec((0u64..600, 1u32..20), 0..5),
    ) {
        let mut spec = job(1, size, 20);
        let mut queue_metric = metric(MetricKind::Pods, "queue", MetricTarget::AverageValue(1.0));
        queue_metric.name = "queue".into();
        spec.scaling = Some(scaling(vec![cpu(100), queue_metric], false));
        let mut look = Look::new(spec, size, vec![], &[]);
        look.memory.recommendations = before.iter().map(|(age, n)| (ago(*age), *n)).collect();
        let pods: Vec<String> = look.pods.iter().map(|p| p.name.clone()).collect();
        for (id, data) in &mut look.signals.signals {
            let value = if id.query.is_some() { queue } else { cpu_level };
            let sample = eto_engine::signals::Sample { value, at: NOW };
            data.per_pod.insert("team-a".into(), pods.iter().map(|p| (p.clone(), sample)).collect());
        }
        let d = look.decide(&ratio_policy());
        if cpu_level > 1.11 && queue > 1.11 {
            prop_assert!(d.target >= size, "all ask for more, {size} became {}", d.target);
        }
        if cpu_level < 0.89 && queue < 0.89 {
            prop_assert!(d.target <= size, "all ask for less, {size} became {}", d.target);
        }
    }

    /// An operator that restarts without its memory, or without the job's status, does no harm.
    #[test]
    fn a_restart_in_the_middle_shrinks_nothing(
        levels in proptest::collection::vec(level(), 1..10),
        lose_status in any::<bool>(),
    ) {
        let mut look = measured(&levels, 80);
        let from = look.state.target;
        look.memory = eto_engine::state::Memory::new(NOW);
        if lose_status {
            look.job.replicas = 1;
            look.state = plan::recover(&look.job, &look.pods, None, NOW);
            prop_assert_eq!(look.state.target, from);
        }
        let d = look.decide(&ratio_policy());
        prop_assert!(d.target >= from);
    }
}
