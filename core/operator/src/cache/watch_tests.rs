#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_server_that_refuses_is_asked_less_and_less_until_it_answers() {
    let mut pauses = Pauses::default();
    let waited: Vec<Duration> = (0..10)
        .map(|_| {
            pauses.heard(&Event::<core::Pod>::Init);
            pauses.next()
        })
        .collect();
    assert!(waited.iter().sum::<Duration>() > Duration::from_secs(40), "{waited:?}");
    assert!(waited.iter().all(|pause| *pause <= LONGEST_PAUSE), "{waited:?}");
    pauses.heard(&Event::<core::Pod>::InitDone);
    assert!(pauses.next() < Duration::from_secs(2), "a new trouble begins with a short pause");
}

fn pod(version: u32, owner: Option<&str>) -> core::Pod {
    let reference = |uid: &str| serde_json::json!([{"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "name": "j", "uid": uid, "controller": true}]);
    serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "j-worker-0-x", "namespace": "n", "uid": "p", "resourceVersion": version.to_string(),
            "labels": {labels::ELASTIC_JOB: "j", labels::INDEX: "0", labels::ROUND: "1"},
            "ownerReferences": owner.map(reference),
        },
        "spec": {"containers": [{"name": "c"}]},
    }))
    .unwrap()
}

/// Caches with the job `n/j` of UID `u`, led by this replica.
fn with_job() -> (Watches, Arc<crate::cache::jobs::Job>) {
    let caches = Watches::default();
    let object = serde_json::json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"replicas": 1},
    });
    let (key, _) = caches.jobs.seen(serde_json::from_value(object).unwrap()).unwrap();
    let job = caches.jobs.get(&key).unwrap();
    job.entry().mind = Some(crate::cache::jobs::Mind::default());
    (caches, job)
}

#[test]
fn a_pod_whose_owner_reference_is_taken_away_counts_no_more_and_is_told_of_once() {
    let (caches, job) = with_job();
    let queue = Queue::new("test");
    let told = || job.entry().mind.as_ref().unwrap().untold.clone();
    let count = || caches.pods.of("n", "u").len();
    pod_event(&caches, &queue, Event::Apply(pod(5, Some("u"))));
    assert_eq!((count(), told().len()), (1, 0));
    pod_event(&caches, &queue, Event::Apply(pod(6, None)));
    pod_event(&caches, &queue, Event::Apply(pod(7, None)));
    assert_eq!((count(), told().len()), (0, 1));
    let event = &told()[0];
    assert!(event.warning && event.reason == EventReason::WorkerReleased, "{event:?}");
    assert!(event.message.contains("j-worker-0-x"), "{event:?}");
    // Its end is no news of the job, and a list in which it stands without an owner does not bring it back.
    pod_event(&caches, &queue, Event::Init);
    pod_event(&caches, &queue, Event::InitApply(pod(7, None)));
    pod_event(&caches, &queue, Event::InitDone);
    pod_event(&caches, &queue, Event::Delete(pod(9, None)));
    assert_eq!((count(), told().len()), (0, 1));
}

#[test]
fn a_pod_released_while_the_watch_was_down_is_told_of_too() {
    let (caches, job) = with_job();
    let queue = Queue::new("test");
    pod_event(&caches, &queue, Event::Apply(pod(5, Some("u"))));
    pod_event(&caches, &queue, Event::Init);
    pod_event(&caches, &queue, Event::InitApply(pod(6, None)));
    pod_event(&caches, &queue, Event::InitDone);
    assert!(caches.pods.of("n", "u").is_empty());
    assert_eq!(job.entry().mind.as_ref().unwrap().untold.len(), 1);
}

#[test]
fn a_pod_that_changes_hands_leaves_its_job() {
    let (caches, _) = with_job();
    let queue = Queue::new("test");
    pod_event(&caches, &queue, Event::Apply(pod(5, Some("u"))));
    pod_event(&caches, &queue, Event::Apply(pod(6, Some("other"))));
    assert_eq!((caches.pods.of("n", "u").len(), caches.pods.of("n", "other").len()), (0, 1));
}

#[test]
fn a_pod_of_another_namespace_is_no_worker_whatever_its_owner_reference_says() {
    let queue = Queue::new("test");
    let mut foreign = pod(5, Some("u"));
    foreign.metadata.namespace = Some("elsewhere".to_owned());
    // The list of pods may be there before that of jobs.
    for pods_first in [false, true] {
        let (caches, _) = with_job();
        let first = Watches { jobs: Arc::default(), ..caches.clone() };
        pod_event(if pods_first { &first } else { &caches }, &queue, Event::Apply(foreign.clone()));
        assert!(caches.pods.of("n", "u").is_empty());
        pod_event(&caches, &queue, Event::Apply(pod(6, Some("u"))));
        assert_eq!(caches.pods.of("n", "u").len(), 1);
    }
}

/// A pod that failed on node `a`, so many seconds before now.
fn failed(uid: &str, owner: &str, ago: u64) -> core::Pod {
    let mut failed = pod(5, Some(owner));
    failed.metadata.uid = Some(uid.to_owned());
    failed.spec.as_mut().unwrap().node_name = Some("a".into());
    let at = k8s_openapi::jiff::Timestamp::now() - Duration::from_secs(ago);
    let end = serde_json::json!({"terminated": {"exitCode": 1, "finishedAt": at.to_string()}});
    let container =
        serde_json::json!({"name": "c", "restartCount": 0, "image": "i", "imageID": "", "ready": false, "state": end});
    let status = serde_json::json!({"phase": "Failed", "containerStatuses": [container]});
    failed.status = Some(serde_json::from_value(status).unwrap());
    failed
}

#[test]
fn a_failure_is_held_against_a_node_where_its_job_is_known() {
    let queue = Queue::new("test");
    let failures = |of: &Watches| of.nodes.faults().get("a").copied();
    let (caches, _) = with_job();
    pod_event(&caches, &queue, Event::Apply(failed("p1", "invented", 60)));
    let mut elsewhere = failed("p2", "u", 60);
    elsewhere.metadata.namespace = Some("elsewhere".into());
    pod_event(&caches, &queue, Event::Apply(elsewhere));
    assert_eq!(failures(&caches), None);
    pod_event(&caches, &queue, Event::Apply(failed("p3", "u", 60)));
    assert_eq!(failures(&caches), Some(1));
    // The list of pods may be there before that of jobs.
    let first = Watches { jobs: Arc::default(), ..Watches::default() };
    pod_event(&first, &queue, Event::InitApply(failed("p4", "u", 60)));
    assert_eq!(failures(&first), None);
    let both = Watches { jobs: Arc::clone(&caches.jobs), ..first };
    let object = (*caches.jobs.all()[0].entry().object).clone();
    job_event(&both, &queue, Event::Init);
    job_event(&both, &queue, Event::InitApply(object));
    job_event(&both, &queue, Event::InitDone);
    assert_eq!(failures(&both), Some(1));
}

#[test]
fn pods_that_failed_long_ago_put_no_node_into_quarantine_when_they_are_listed() {
    let queue = Queue::new("test");
    for (ago, wanted) in [(7 * 86_400, vec![]), (5000, vec![]), (60, vec!["a".to_owned()])] {
        let (caches, _) = with_job();
        // Alone on its node a job counts half.
        for n in 0..6 {
            pod_event(&caches, &queue, Event::InitApply(failed(&format!("p{n}"), "u", ago)));
        }
        assert_eq!(caches.nodes.quarantined(), wanted, "{ago} s ago");
    }
}

#[test]
fn a_node_whose_end_is_announced_has_its_jobs_looked_at_and_no_others() {
    let (caches, _job) = with_job();
    let queue = Queue::new("test");
    let mut on_a = pod(5, Some("u"));
    on_a.spec.as_mut().unwrap().node_name = Some("a".into());
    pod_event(&caches, &queue, Event::Apply(on_a));
    queue.clear();
    let node = |name: &str, taints: serde_json::Value| -> core::Node {
        let status = serde_json::json!({"conditions": [{"type": "Ready", "status": "True"}]});
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": name}, "spec": {"taints": taints}, "status": status}),
        )
        .unwrap()
    };
    let going = serde_json::json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    for name in ["a", "b"] {
        node_event(&caches, &queue, Event::Apply(node(name, serde_json::json!([]))));
    }
    assert_eq!(queue.len(), 0);
    node_event(&caches, &queue, Event::Apply(node("b", going.clone())));
    assert_eq!(queue.len(), 0);
    node_event(&caches, &queue, Event::Apply(node("a", going)));
    assert_eq!(queue.len(), 1);
    assert_eq!(caches.nodes.leaving(&caches.pods.of("n", "u"), BTreeSet::new).len(), 1);
}
