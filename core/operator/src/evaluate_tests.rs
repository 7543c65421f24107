#![allow(clippy::unwrap_used)]
use eto_engine::state::Phase;
use eto_policy_host::Registry;
use serde_json::{Value, json};

use super::*;
use crate::cache::jobs::{Jobs, Mind};

/// The jobs `a` of a namespace, whose metric is that of its pods, and `b` of the same.
fn jobs(jobs: &Jobs, namespace: &str, metric: &Value) -> [Arc<Job>; 2] {
    ["a", "b"].map(|name| {
        let object = json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "resourceVersion": "1"},
            "spec": {"scalingPolicy": {"maxReplicas": 4, "metrics": [metric]}},
        });
        let (key, _) = jobs.seen(serde_json::from_value(object).unwrap()).unwrap();
        jobs.get(&key).unwrap()
    })
}

#[test]
fn a_job_that_is_not_due_has_its_claim_and_one_that_has_ended_has_none() {
    let (cached, cache, policies) = (Jobs::default(), WantsCache::default(), Registry::new().snapshot());
    let target = json!({"type": "AverageValue", "averageValue": "1"});
    let custom = json!({"type": "Pods", "pods": {"metric": {"name": "q"}, "target": target}});
    let [due, other] = jobs(&cached, "custom", &custom);
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let [built_in, _] = jobs(&cached, "built-in", &cpu);
    let rival = || {
        let due = [Arc::clone(&due), Arc::clone(&built_in)];
        let (wants, claims) = asked(&cache, &due, &cached.all(), &policies, Time(0));
        assert_eq!(wants.keys().filter(|id| id.query.as_deref() == Some("q")).count(), 1, "{wants:?}");
        claims.rival(&due[0].key, "q").map(str::to_owned)
    };
    assert_eq!(rival().as_deref(), Some("b"));
    let in_phase = |phase| {
        let mut mind = Mind::default();
        mind.state.phase = phase;
        other.entry().mind = Some(mind);
        rival()
    };
    assert_eq!(in_phase(Phase::Suspended).as_deref(), Some("b"));
    assert_eq!(in_phase(Phase::Succeeded), None);
}

#[test]
fn each_job_is_due_once_a_period_at_its_own_moment() {
    let (began, period) = (Instant::now(), Duration::from_secs(15));
    for uid in ["a", "b", "c4f5-77", "0000"] {
        let mut at = began;
        for _ in 0..100 {
            let next = next_due(uid, period, began, at);
            let gap = next.duration_since(at);
            assert!(gap >= period / 2 && gap <= period.mul_f64(1.5), "{uid}: {gap:?}");
            if at != began {
                assert_eq!(gap, period, "{uid}");
            }
            at = next;
        }
    }
}

#[test]
fn gatherings_that_are_a_whole_period_apart_miss_no_job() {
    let (began, period) = (Instant::now(), Duration::from_secs(1));
    for uid in ["a", "b", "c4f5-77", "0000", "7d1e"] {
        let mut due = next_due(uid, period, began, began);
        for tick in 1..100_u32 {
            // Up to 90 ms late, as on a busy machine.
            let cycle = began + period * tick + Duration::from_millis(u64::from(tick * 37 % 90));
            assert!(due < cycle + period, "{uid}: not looked at in tick {tick}");
            due = next_due(uid, period, began, cycle);
        }
    }
}

#[test]
fn jobs_are_spread_over_the_period() {
    let (began, period) = (Instant::now(), Duration::from_secs(10));
    let mut slots = [0; 10];
    for i in 0..1000 {
        let at = next_due(&format!("uid-{i}"), period, began, began).duration_since(began);
        slots[usize::try_from(at.as_secs() % 10).unwrap_or(0)] += 1;
    }
    assert!(slots.iter().all(|n| (50..200).contains(n)), "{slots:?}");
}
