//! Which node a failure of processes speaks of, where the pod lives on.
//!
//! One fault makes all members of a round fail, so only the first is blamed; where several are seen at once nobody is. And
//! not before the next round runs with the failure still charged: peers of a lost member fail too, and that is known later.

use std::time::Duration;

use eto_engine::observe::Pod;
use eto_engine::plan::{Event, EventReason, Group};
use eto_engine::state::{JobState, Phase};
use eto_membership::MemberState;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::cache::jobs::{Job, Mind};
use crate::cache::quarantine::Failure;
use crate::context::Context;

/// The first that failed in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    pub generation: u64,
    /// UID of its pod.
    pub pod: String,
    pub node: String,
}

/// Looks at the round that stands, before the plan ends it: `None` where nobody failed in it, or more than one.
pub(crate) fn first_to_fail(state: &JobState, pods: &[Pod], group: Option<&Group>) -> Option<Suspect> {
    let round = state.round.as_ref()?;
    let generation = round.generation;
    let failed = |uid: &str| {
        let report = &group?.members.get(uid)?.report;
        let own = matches!(report.state, MemberState::Exited { generation: of, code } if of == generation && code != 0);
        own.then_some(())?;
        pods.iter().find(|p| p.uid == uid && !report.leaving && p.deleting.is_none() && !p.disrupted)
    };
    let mut all = round.agent.as_ref()?.members.iter().filter_map(|m| failed(&m.uid));
    let pod = all.next()?;
    let node = pod.node.clone()?;
    all.next().is_none().then(|| Suspect { generation, pod: pod.uid.clone(), node })
}

/// Whether the suspicion has come true; `None` = it is not known yet.
fn verdict(suspect: &Suspect, state: &JobState, pods: &[Pod]) -> Option<bool> {
    let lives = || pods.iter().any(|p| p.uid == suspect.pod && !p.is_ended() && p.deleting.is_none());
    if state.phase == Phase::Failed {
        return Some(true);
    }
    let Some(round) = state.round.as_ref().filter(|_| !state.phase.is_terminal()) else { return Some(false) };
    if round.generation == suspect.generation || round.running_since.is_none() {
        return None;
    }
    // A pod that failed with its processes counts by itself.
    Some(round.agent.as_ref().is_some_and(|a| a.charged) && lives())
}

/// Holds what failed in a pod that lives on against its node, once it is known to be that pod's own.
pub(crate) fn note_failure(context: &Context, job: &Job, mind: &mut Mind, first: Option<Suspect>, pods: &[Pod]) {
    // The plan has answered to it: the round that it failed in is over.
    let answered = |s: &Suspect| mind.state.round.as_ref().is_none_or(|r| r.generation != s.generation);
    if let Some(first) = first.filter(answered) {
        mind.suspect = Some(first);
    }
    let Some(suspect) = &mind.suspect else { return };
    let Some(held) = verdict(suspect, &mind.state, pods) else { return };
    if held {
        let among_others = pods.iter().any(|p| p.node.as_ref().is_some_and(|n| *n != suspect.node));
        let of = format!("{}/{}", suspect.pod, suspect.generation);
        let failure = Failure { of, job: job.uid.clone(), node: suspect.node.clone(), among_others };
        context.caches.nodes.fault(failure, Duration::ZERO);
    }
    mind.suspect = None;
}

/// Tells of nodes that came into quarantine: about the node, and about the job whose failure was the last.
pub(crate) fn tell_of_quarantine(context: &Context) {
    for (node, job) in context.caches.nodes.newly_quarantined() {
        let limit = context.settings.nodes.quarantine_failures;
        let message = format!(
            "{limit} failures of workers on node {node} within {}: new workers avoid it for a while",
            context.settings.nodes.quarantine_half_life
        );
        tracing::warn!(node, "workers fail on it again and again; new ones avoid it for a while");
        if let Some(job) = context.caches.jobs.by_uid(&job) {
            let event = Event { warning: true, reason: EventReason::NodeQuarantined, message: message.clone() };
            context.events.tell(&job.key, &job.uid, event);
        }
        // The rights of an operator of one namespace end there.
        if context.settings.kubernetes.namespace.is_empty() {
            context.events.tell_operator(Some(about_node(&node)), true, "NodeQuarantined", message);
        }
    }
}

/// As kubelets name a node in their events: `kubectl describe node` looks for that.
fn about_node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_engine::state::{AgentRound, RoundCause, RoundMember, RoundState};
    use eto_engine::time::Time;
    use eto_membership::{MemberRecord, Report};
    use serde_json::json;

    use super::*;

    fn pod(uid: &str) -> Pod {
        let labels = json!({"elastic.ai/index": "0", "elastic.ai/round": "1"});
        let object = json!({
            "metadata": {"name": uid, "uid": uid, "labels": labels}, "spec": {"nodeName": format!("node-{uid}"), "containers": []},
        });
        crate::cache::observed(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn state(generation: u64, running: bool, charged: bool) -> JobState {
        let member = |uid: &str| RoundMember { uid: uid.into(), ..RoundMember::default() };
        let agent = AgentRound { members: vec![member("a"), member("b")], charged, ..AgentRound::default() };
        let round = RoundState {
            generation,
            size: 2,
            template_hash: String::new(),
            since: Time(1),
            running_since: running.then_some(Time(2)),
            cause: RoundCause::WorkerLost,
            complete: None,
            required_nodes: false,
            gaps: vec![],
            restarts_charged: 0,
            agent: Some(agent),
        };
        JobState { round: Some(round), phase: Phase::Running, ..JobState::default() }
    }

    fn group(exits: &[(&str, u64, i32)]) -> Group {
        let record = |generation: u64, code: i32| MemberRecord {
            pod: String::new(),
            report: Report {
                agent: String::new(),
                incarnation: String::new(),
                sequence: 1,
                address: String::new(),
                processes: 1,
                generation,
                state: MemberState::Exited { generation, code },
                checkpoint: None,
                progress: None,
                last_lines: String::new(),
                out_of_memory: false,
                step_work_us: None,
                out_of_reach: Vec::new(),
                leaving: false,
                alone: false,
                native: false,
            },
            joined_ms: 0,
            suspected: false,
        };
        let members = exits.iter().map(|(uid, of, code)| ((*uid).to_owned(), record(*of, *code))).collect();
        Group { assignment: None, members }
    }

    #[test]
    fn the_first_to_fail_is_blamed_and_nobody_where_several_are_seen_at_once() {
        let (state, pods) = (state(7, true, false), [pod("a"), pod("b")]);
        let first = |exits: &[(&str, u64, i32)]| first_to_fail(&state, &pods, Some(&group(exits))).map(|s| s.node);
        assert_eq!(first(&[("b", 7, 1)]).as_deref(), Some("node-b"));
        assert_eq!(first(&[("b", 7, 1), ("a", 7, 139)]), None);
        assert_eq!(first(&[("b", 6, 1)]), None, "of an earlier round");
        assert_eq!(first(&[("b", 7, 0)]), None, "its work is done");
        assert_eq!(first_to_fail(&state, &pods, None), None);
    }

    #[test]
    fn it_counts_when_the_next_round_runs_and_the_failure_is_still_charged() {
        let suspect = Suspect { generation: 7, pod: "b".into(), node: "node-b".into() };
        let pods = [pod("a"), pod("b")];
        assert_eq!(verdict(&suspect, &state(7, true, false), &pods), None);
        assert_eq!(verdict(&suspect, &state(8, false, true), &pods), None);
        assert_eq!(verdict(&suspect, &state(8, true, true), &pods), Some(true));
        assert_eq!(verdict(&suspect, &state(8, true, false), &pods), Some(false), "a peer was lost");
        assert_eq!(verdict(&suspect, &state(8, true, true), &pods[..1]), Some(false), "its pod counts by itself");
    }
}
