//! A pod as the engine sees it.

use eto_api::labels;
use eto_cycle::resources;
use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::observe::{ContainerEnd, Pod, is_disruption};
use eto_engine::state::RoundMode;
use eto_engine::time::Time;
use eto_membership::last_lines;
use k8s_openapi::api::core::v1::{self as core, ContainerState, ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;

/// Trims a pod to what decisions need; `None` where it lacks what every pod of ours has.
pub(crate) fn observe(pod: &core::Pod) -> Option<Pod> {
    let meta = &pod.metadata;
    let label = |name: &str| meta.labels.as_ref().and_then(|l| l.get(name));
    let status = pod.status.as_ref();
    let ready = condition(pod, "Ready");
    let scheduled = condition(pod, "PodScheduled");
    let statuses = || status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
    let initial = || status.and_then(|s| s.init_container_statuses.as_ref()).into_iter().flatten();
    let reason = status.and_then(|s| s.reason.clone());
    let disrupted = condition(pod, "DisruptionTarget").is_some_and(|c| c.status == "True")
        || reason.as_deref().is_some_and(is_disruption);
    let round = label(labels::ROUND)?.parse().ok()?;
    let first = pod.spec.as_ref().and_then(|s| s.containers.first());
    let training = first.and_then(|first| statuses().find(|c| c.name == first.name));
    Some(Pod {
        name: meta.name.clone()?,
        uid: meta.uid.clone()?,
        index: label(labels::INDEX)?.parse().ok()?,
        round,
        round_size: label(labels::ROUND_SIZE).and_then(|s| s.parse().ok()).unwrap_or(0),
        incarnation: label(labels::INCARNATION).and_then(|s| s.parse().ok()).unwrap_or(round),
        mode: match label(labels::ROUNDS).map(String::as_str) {
            Some(labels::ROUNDS_AGENT) => RoundMode::Agent,
            _ => RoundMode::Recreate,
        },
        template_hash: label(labels::TEMPLATE_HASH).cloned().unwrap_or_default(),
        phase: phase(status.and_then(|s| s.phase.as_deref())),
        reason,
        ready: readiness(ready),
        created: meta.creation_timestamp.as_ref().map(time).unwrap_or_default(),
        started: status.and_then(|s| s.start_time.as_ref()).map(time),
        ready_changed: ready.and_then(|c| c.last_transition_time.as_ref()).map(time),
        ended: ended(pod, ready),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty()),
        unschedulable: scheduled
            .filter(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))
            .map(|c| c.message.clone().unwrap_or_else(|| "the scheduler gives no reason".into())),
        waiting: initial().chain(statuses()).find_map(waiting),
        deleting: meta.deletion_timestamp.as_ref().map(time),
        restarts: statuses().map(|c| u32::try_from(c.restart_count).unwrap_or(0)).fold(0, u32::saturating_add),
        exit_code: training.and_then(|c| c.state.as_ref()).and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code),
        last_end: training.and_then(last_end).map(Box::new),
        memory_limit: first.map_or(0, resources::memory_limit),
        disrupted,
        request: pod.spec.as_ref().map(resources::utilisation).unwrap_or_default(),
    })
}

/// When a pod ended: with the last of its containers; where they do not say, when it stopped being ready, or at the earliest,
/// when it was made. `None` while it lives.
fn ended(pod: &core::Pod, ready: Option<&PodCondition>) -> Option<Time> {
    let status = pod.status.as_ref().filter(|s| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed")))?;
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let last = all.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()).max_by_key(|at| at.0);
    let at = last.or_else(|| ready?.last_transition_time.as_ref());
    Some(at.or(pod.metadata.creation_timestamp.as_ref()).map(time).unwrap_or_default())
}

/// How a container ended last: now, or before it was started again.
fn last_end(container: &ContainerStatus) -> Option<ContainerEnd> {
    let ended = |state: &Option<ContainerState>| state.as_ref().and_then(|s| s.terminated.clone());
    let end = ended(&container.state).or_else(|| ended(&container.last_state))?;
    let lines = if end.exit_code == 0 { String::new() } else { last_lines(end.message.as_deref().unwrap_or_default()) };
    Some(ContainerEnd { code: end.exit_code, reason: end.reason.unwrap_or_default(), lines })
}

fn condition<'a>(pod: &'a core::Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

fn phase(phase: Option<&str>) -> WorkerPhase {
    match phase {
        Some("Pending") | None => WorkerPhase::Pending,
        Some("Running") => WorkerPhase::Running,
        Some("Succeeded") => WorkerPhase::Succeeded,
        Some("Failed") => WorkerPhase::Failed,
        Some(_) => WorkerPhase::Unknown,
    }
}

fn readiness(ready: Option<&PodCondition>) -> Readiness {
    match ready.map(|c| c.status.as_str()) {
        Some("True") => Readiness::Ready,
        Some("False") => Readiness::NotReady,
        _ => Readiness::Unknown,
    }
}

/// Why a container waits, if it is a reason to tell; `ContainerCreating` and the like are the ordinary course.
fn waiting(container: &ContainerStatus) -> Option<String> {
    let ContainerState { waiting: Some(waiting), .. } = container.state.as_ref()? else { return None };
    let reason = waiting.reason.as_deref()?;
    if matches!(reason, "ContainerCreating" | "PodInitializing") {
        return None;
    }
    Some(match &waiting.message {
        Some(message) => format!("{}: {reason}: {message}", container.name),
        None => format!("{}: {reason}", container.name),
    })
}

fn time(at: &MetaTime) -> Time {
    Time(u64::try_from(at.0.as_millisecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod(status: &serde_json::Value) -> Pod {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "j-worker-1-x", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {labels::INDEX: "1", labels::ROUND: "7", labels::TEMPLATE_HASH: "h"},
            },
            "spec": {"containers": [{"name": "train", "resources": {"requests": {"cpu": "2"}}}, {"name": "side"}]},
            "status": status.clone(),
        }))
        .unwrap();
        observe(&pod).unwrap()
    }

    #[test]
    fn a_running_pod() {
        let got = pod(&json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:01Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}],
            "containerStatuses": [
                {"name": "train", "restartCount": 2, "image": "i", "imageID": "", "ready": true},
                {"name": "side", "restartCount": 1, "image": "i", "imageID": "", "ready": true},
            ],
        }));
        assert_eq!((got.index, got.round, got.restarts, got.is_ready()), (1, 7, 3, true));
        assert_eq!(
            (got.started.unwrap().0 - got.created.0, got.ready_changed.unwrap().0 - got.created.0),
            (1000, 2000)
        );
    }

    #[test]
    fn what_a_pod_was_made_for_is_read_off_it() {
        let job: eto_api::ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": "n", "name": "j", "uid": "u"},
            "spec": {"replicas": 5, "template": {"spec": {"containers": [{"name": "train", "image": "i"}]}}},
        }))
        .unwrap();
        let new = eto_engine::plan::NewPod {
            index: 3,
            round: 7,
            size: 5,
            incarnation: 7,
            mode: RoundMode::Recreate,
            env: eto_engine::plan::PodEnv::default(),
            node: None,
            memory: None,
        };
        let mut made = eto_cycle::pod::build(&job, &new, None).unwrap().unwrap().pod;
        made.metadata.uid = Some("p".into());
        let got = observe(&made).unwrap();
        assert_eq!((got.index, got.round, got.round_size), (3, 7, 5));
        assert_eq!(got.template_hash, eto_cycle::template::hash(&job));
    }

    #[test]
    fn why_a_pod_waits() {
        let got = pod(&json!({
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}],
            "containerStatuses": [{"name": "train", "restartCount": 0, "image": "i", "imageID": "", "ready": false,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}],
        }));
        assert_eq!(got.unschedulable.as_deref(), Some("0/4 nodes"));
        assert_eq!(got.waiting.as_deref(), Some("train: ImagePullBackOff: no such image"));
        assert!(pod(&json!({"phase": "Pending"})).waiting.is_none());
    }

    #[test]
    fn how_the_training_container_ended_last() {
        let status = |state: serde_json::Value| {
            let mut status = json!({"name": "train", "restartCount": 1, "image": "i", "imageID": "", "ready": false});
            status.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
            pod(&json!({"phase": "Running", "containerStatuses": [status]})).last_end
        };
        let end = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "message": "  1%\r100%\nKeyError: 'x'\n"}});
        let failed = status(json!({"state": end(1)})).unwrap();
        assert_eq!((failed.code, failed.reason.as_str(), failed.lines.as_str()), (1, "Error", "100%\nKeyError: 'x'"));
        let restarted = status(json!({"state": {"running": {}}, "lastState": end(3)})).unwrap();
        assert_eq!((restarted.code, restarted.lines.is_empty()), (3, false), "it runs again");
        assert_eq!(status(json!({"state": end(0)})).unwrap().lines, "", "one that is done has no last words");
        assert_eq!(status(json!({"state": {"running": {}}})), None);
    }

    #[test]
    fn whose_fault_an_end_was() {
        let ended = |reason: &str, code: i32| {
            pod(&json!({
                "phase": "Failed", "reason": reason,
                "containerStatuses": [{"name": "train", "restartCount": 0, "image": "i", "imageID": "", "ready": false,
                    "state": {"terminated": {"exitCode": code}}}],
            }))
        };
        assert_eq!((ended("Evicted", 137).disrupted, ended("Evicted", 137).exit_code), (true, Some(137)));
        assert!(ended("Preempted", 137).disrupted && ended("UnexpectedAdmissionError", 1).disrupted);
        assert!(!ended("Error", 1).disrupted);
    }

    #[test]
    fn a_pod_ended_with_the_last_of_its_containers() {
        let end = |phase: &str, finished: &[&str], conditions: serde_json::Value| {
            let container = |at: &&str| {
                let state = json!({"terminated": {"exitCode": 1, "finishedAt": at}});
                json!({"name": "c", "restartCount": 0, "image": "i", "imageID": "", "ready": false, "state": state})
            };
            let all: Vec<_> = finished.iter().map(container).collect();
            let got = pod(&json!({"phase": phase, "conditions": conditions, "containerStatuses": all}));
            got.ended.map(|at| (at.0 - got.created.0) / 1000)
        };
        let ready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:09Z"}]);
        assert_eq!(end("Failed", &["2026-01-01T00:00:05Z", "2026-01-01T00:00:07Z"], ready.clone()), Some(7));
        assert_eq!(end("Failed", &[], ready.clone()), Some(9));
        assert_eq!(end("Succeeded", &[], json!([])), Some(0));
        assert_eq!(end("Running", &["2026-01-01T00:00:05Z"], ready), None);
    }
}
