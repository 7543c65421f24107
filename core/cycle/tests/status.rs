// Long because it has each field of a status once, with a value of its own.
//! The state makes its way through `status` and back, at a bounded size, and a broken status counts as lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use eto_api::{ElasticJob, ElasticJobStatus};
use eto_cycle::status::{MAX_STORED_POLICY_STATE, StatusFacts, from_status, to_status, worth_writing};
use eto_engine::contract::{KeptState, Quality, Reason};
use eto_engine::decision::{Decision, Failure, Limit, Limiter, Placed, PlacedOn, SignalSeen};
use eto_engine::plan::Checkpoint;
use eto_engine::policy::{FailureKind, PolicyId};
use eto_engine::state::{
    AgentRound, Change, ChangeBy, ChangeKind, ChangeOutcome, ChangeStep, Charge, Circuit, Condition, ConditionKind,
    ConditionReason, FailedWorker, GrownMemory, HistoryEntry, JobState, Kept, LossClass, MAX_BEFORE, MAX_HISTORY,
    MAX_NAMES, Memory, Phase, PlacementMemory, ResizeCost, ResizeRecord, RoundCause, RoundMember, RoundOrder,
    RoundState, Steadiness, Straggler, Victim,
};
use eto_engine::time::Time;
use eto_membership::MAX_MEMBERS;

const NOW: Time = Time(1_800_000_000_123);

fn state() -> JobState {
    JobState {
        phase: Phase::Resizing,
        target: 7,
        based_on: 3,
        round: Some(RoundState {
            generation: 12,
            size: 5,
            template_hash: "abc".to_string(),
            since: Time(1_799_999_000_001),
            running_since: Some(Time(1_799_999_500_002)),
            cause: RoundCause::Grow,
            complete: Some(Time(1_799_999_400_003)),
            required_nodes: true,
            gaps: vec![2, 4],
            restarts_charged: 1,
            agent: Some(AgentRound {
                order: RoundOrder::Stop,
                in_force: Some(Time(1_799_999_000_100)),
                firm: true,
                members: vec![RoundMember {
                    index: 3,
                    uid: "u3".to_string(),
                    address: "10.0.0.3".to_string(),
                    processes: 2,
                }],
                stopping: vec!["u3".to_string(), "u4".to_string()],
                grace_ms: 5_000,
                native: Some(eto_membership::Native { run: 11, min: 1, max: 8, alone: true }),
                run_ranks: vec![3, 0, 1],
                hung: Some("u2".to_string()),
                why: "worker 2 was deleted".to_string(),
                charged: true,
                pods_from: 9,
                tells: true,
            }),
        }),
        last_generation: 12,
        victims: vec![Victim {
            pod: "train-worker-4-abcde".to_string(),
            uid: "u4".to_string(),
            index: 4,
            reason: "newest".to_string(),
        }],
        deleting: vec!["u5".to_string()],
        failures: 2,
        charges: vec![Charge {
            class: LossClass::OutOfMemory,
            first: Time(1_799_999_000_030),
            last: Time(1_799_999_000_031),
            count: 2,
        }],
        disruptions: 3,
        start_attempts: 1,
        not_before: Some(Time(1_800_000_030_000)),
        last_resize: Some(ResizeRecord {
            from: 3,
            to: 5,
            decided: Time(1_799_999_000_000),
            done: None,
            refused: true,
            refusals: 2,
            cost: Some(ResizeCost { paused_ms: 4_200, steps_lost: Some(17) }),
            by: ChangeBy::Policy,
            why: "hpa: busy".to_string(),
        }),
        stragglers: vec![Straggler {
            pod: "train-worker-3-abcde".to_string(),
            uid: "u3".to_string(),
            since: Time(1_799_999_000_020),
        }],
        memory: Some(GrownMemory { template_hash: "abc".to_string(), bytes: 6_442_450_944 }),
        history: vec![under_way(), HistoryEntry::default()],
        change: Some(Change {
            cause: RoundCause::Shrink,
            from: 5,
            to: 4,
            step: ChangeStep::Stopping,
            decided: Time(1_799_999_000_004),
            since: Time(1_799_999_000_005),
            checkpoint: Some(Checkpoint { generation: 11, step: 900, at_ms: 1_799_998_000_006 }),
            stopped: Some(Time(1_799_999_000_007)),
            steps_lost: Some(3),
            anywhere: true,
        }),
        started_at: Some(Time(1_799_990_000_000)),
        finished_at: None,
        message: Some("so it is".to_string()),
        conditions: vec![Condition {
            kind: ConditionKind::Resizing,
            status: true,
            reason: ConditionReason::ResizeStarted,
            message: "from 5 to 7".to_string(),
            since: Time(1_799_999_999_999),
        }],
    }
}

fn under_way() -> HistoryEntry {
    HistoryEntry {
        kind: ChangeKind::Replacement,
        by: ChangeBy::Loss,
        loss: Some(LossClass::NodeLost),
        why: "worker 2 is not heard of".to_string(),
        from: 3,
        to: 5,
        generation: 12,
        attempts: 2,
        started: Time(1_799_999_000_010),
        stopped: Some(Time(1_799_999_000_011)),
        ended: Some(Time(1_799_999_000_012)),
        outcome: Some(ChangeOutcome::Refused),
        paused_ms: Some(77),
        steps_lost: Some(5),
        failed: Some(FailedWorker {
            pod: "train-worker-2-abcde".to_string(),
            exit_code: Some(1),
            reason: "Error".to_string(),
            last_lines: "ValueError: bad shape".to_string(),
        }),
        left: vec!["train-worker-2-abcde".to_string()],
        joined: vec!["train-worker-2-fghij".to_string()],
        before: vec!["train-worker-1-abcde".to_string()],
    }
}

fn memory() -> Memory {
    Memory {
        since: Time(1_799_000_000_000),
        sequence: 99,
        replicas: Some(3),
        recommendations: vec![(Time(1_799_999_900_000), 5), (Time(1_799_999_915_000), 7)],
        ups: vec![(Time(1_799_999_000_000), 2)],
        downs: vec![(Time(1_799_998_000_000), 1)],
        policy_state: Some(KeptState { version: 3, bytes: vec![0, 255, 7] }),
        policy_state_of: Some("mine".to_string()),
        placement: PlacementMemory {
            kept: Kept { state: Some(KeptState { version: 2, bytes: vec![9, 0] }), of: Some("near".to_string()) },
            circuits: BTreeMap::new(),
            last: Some(placed()),
        },
        circuits: [("sha256:aa".to_string(), Circuit { failures: 3, open_until: Some(NOW), last: None })].into(),
        history: BTreeMap::new(),
        last: None,
        limited: Steadiness::default(),
    }
}

fn placed() -> Placed {
    let (code, message) = ("Near".to_string(), "one rack".to_string());
    let reason = Reason { code, message, signal: None, value: Some(1.0), target: None };
    Placed {
        at: Time(1_799_999_800_000),
        generation: 4,
        policy: Some(PolicyId {
            name: "near".to_string(),
            version: "1.0.0".to_string(),
            digest: format!("sha256:{}", "b".repeat(64)),
        }),
        apply: true,
        nodes: vec![PlacedOn { node: "n-1".to_string(), required: true, workers: vec![3, 4] }],
        unlisted: 2,
        victims: vec![5],
        reasons: vec![reason],
        fuel: 77,
        failure: Some(Failure { kind: FailureKind::Trap, message: "at src/lib.rs:3".to_string(), in_a_row: 2 }),
    }
}

fn decision() -> Decision {
    Decision {
        at: NOW,
        uid: "u".to_string(),
        sequence: 99,
        generation: 4,
        policy: Some(PolicyId {
            name: "hpa".to_string(),
            version: "0.6.0".to_string(),
            digest: format!("sha256:{}", "a".repeat(64)),
        }),
        answered: true,
        from: 5,
        proposed: Some(9),
        target: 7,
        apply: true,
        limits: vec![Limit { by: Limiter::TooManyReplicas, from: 9, to: 7, until: None, message: "m".repeat(2000) }],
        reasons: vec![
            Reason {
                code: "AboveTarget".to_string(),
                message: "ü".repeat(5000),
                signal: None,
                value: Some(f64::NAN),
                target: Some(0.7),
            };
            100
        ],
        signals: vec![
            SignalSeen {
                name: "cpu-utilisation".to_string(),
                metric: None,
                quality: Quality::Ok,
                coverage: 1.0,
                age_ms: 4000,
                mean: Some(0.93),
                note: None,
            };
            100
        ],
        fuel: 12345,
        failure: None,
        mend: None,
        placement: None,
        next_look: None,
    }
}

fn job() -> ElasticJob {
    let mut job = ElasticJob::default();
    job.metadata.name = Some("train".to_string());
    job.metadata.generation = Some(4);
    job.spec.placement_policy = Some(eto_api::PlacementPolicy::default());
    job
}

fn status(state: &JobState, memory: &Memory, decision: Option<&Decision>) -> ElasticJobStatus {
    let facts = StatusFacts { job: &job(), spec: None, state, memory, decision, replicas: 5, ready: 4, now: NOW };
    to_status(&facts)
}

/// As the API server would hand it back.
fn stored(status: &ElasticJobStatus) -> ElasticJobStatus {
    serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap()
}

#[test]
fn everything_of_the_state_comes_back() {
    let (state, memory) = (state(), memory());
    let back = from_status(&stored(&status(&state, &memory, Some(&decision()))), NOW).unwrap();
    assert_eq!(back.state, state);
    assert_eq!(back.memory, memory);
}

#[test]
fn a_state_with_nothing_in_it_comes_back() {
    let state = JobState::default();
    let back = from_status(&stored(&status(&state, &Memory::new(NOW), None)), NOW).unwrap();
    assert_eq!(back.state, state);
}

#[test]
fn an_old_memory_counts_as_begun_now() {
    let stored = stored(&status(&state(), &memory(), None));
    let later = Time(NOW.0 + 3_600_000);
    let back = from_status(&stored, later).unwrap();
    assert_eq!(back.memory.since, later);
    assert_eq!(back.memory.policy_state, memory().policy_state);
    assert_eq!(back.memory.placement, memory().placement);
    assert_eq!(back.memory.sequence, 99);
}

#[test]
fn what_can_not_be_read_counts_as_lost() {
    let good = serde_json::to_value(status(&state(), &memory(), None)).unwrap();
    for (field, broken) in [
        ("phase", serde_json::json!("Dancing")),
        ("phase", serde_json::json!(7)),
        ("round", serde_json::json!({"generation": 1, "since": "yesterday", "cause": "Grow"})),
        ("round", serde_json::json!({"since": "2026-01-01T00:00:00Z", "cause": "Whim"})),
        ("startTime", serde_json::json!("soon")),
    ] {
        let mut value = good.clone();
        value[field] = broken.clone();
        let status: ElasticJobStatus = serde_json::from_value(value).unwrap();
        assert_eq!(from_status(&status, NOW), None, "{field}: {broken}");
    }
    assert_eq!(from_status(&ElasticJobStatus::default(), NOW), None);
}

#[test]
fn a_condition_of_a_newer_version_is_left_out() {
    let mut stored = stored(&status(&state(), &memory(), None));
    let mut newer = stored.conditions[0].clone();
    newer.kind = "Levitating".to_string();
    stored.conditions.push(newer);
    assert_eq!(from_status(&stored, NOW).unwrap().state.conditions, state().conditions);
}

#[test]
fn the_size_stays_in_its_budget() {
    let mut memory = memory();
    let mut full_of_changes = state();
    let names = || (0..MAX_NAMES).map(|n| format!("a-training-job-worker-{n}-abcde")).collect();
    let full = HistoryEntry { why: "w".repeat(2000), left: names(), joined: names(), before: vec![], ..under_way() };
    full_of_changes.history = vec![full; MAX_HISTORY];
    memory.policy_state = Some(KeptState { version: 1, bytes: vec![1; MAX_STORED_POLICY_STATE] });
    memory.placement.kept.state = memory.policy_state.clone();
    memory.recommendations = (0..2000).map(|n| (Time(NOW.0 + u64::from(n) * 15_000), 5 + n % 2)).collect();
    memory.ups = (0..2000).map(|n| (Time(NOW.0 + n), 1)).collect();
    let size = serde_json::to_vec(&status(&full_of_changes, &memory, Some(&decision()))).unwrap().len();
    assert!(size < 64 * 1024, "{size}");
    memory.policy_state = Some(KeptState { version: 1, bytes: vec![1; 60_000] });
    memory.placement.kept.state = memory.policy_state.clone();
    memory.recommendations.clear();
    let larger = status(&state(), &memory, None);
    let kept = from_status(&stored(&larger), NOW).unwrap().memory;
    assert_eq!((kept.policy_state, kept.placement.kept.state), (None, None), "too large to be kept here");
    assert_eq!(kept.placement.kept.of.as_deref(), Some("near"), "there is something to be found elsewhere");
    assert_eq!(kept.since, NOW, "what is lost in a restart shrinks nothing");
}

/// The status of a job with as many workers as there can be, while it changes to `to` of them. Names are the longest there
/// are: 50 characters of the job's name, an IPv6 address.
fn widest(to: u32) -> JobState {
    let uid = |n: u32| format!("6f1d8c52-7e0b-4f4e-9d60-{n:012}");
    let name = |n: u32| format!("{}-worker-{n}-abcde", "j".repeat(50));
    let mut wide = state();
    let reason = "the placement policy gives it up".to_owned();
    let victim = |n| Victim { pod: name(n), uid: uid(n), index: n, reason: reason.clone() };
    wide.victims = (to..MAX_MEMBERS).map(victim).collect();
    wide.history[0].before = (0..u32::try_from(MAX_BEFORE).unwrap()).map(name).collect();
    let round = wide.round.as_mut().unwrap();
    (round.size, round.gaps) = (to, (0..MAX_MEMBERS - to).collect());
    let agent = round.agent.as_mut().unwrap();
    let address = "2001:db8:1234:5678:9abc:def0:1234:5678".to_owned();
    let member = |n| RoundMember { index: n, uid: uid(n), address: address.clone(), processes: 8 };
    agent.members = (0..to).map(member).collect();
    agent.stopping = (0..MAX_MEMBERS).map(uid).collect();
    wide
}

#[test]
fn the_widest_job_has_a_status_that_etcd_takes() {
    for to in [1, MAX_MEMBERS / 2, MAX_MEMBERS] {
        let status = status(&widest(to), &memory(), Some(&decision()));
        let size = serde_json::to_vec(&status).unwrap().len();
        // Of the 1.5 MiB for the whole object.
        assert!(size < 1024 * 1024, "{to}: {size}");
        assert_eq!(from_status(&stored(&status), NOW).unwrap().state, widest(to));
    }
}

#[test]
fn a_history_that_is_not_whole_counts_as_begun_now() {
    let mut memory = memory();
    let mut back = |recommendations: Vec<(Time, u32)>| {
        memory.recommendations = recommendations;
        from_status(&stored(&status(&state(), &memory, None)), NOW).unwrap().memory
    };
    let at = |n: u32| Time(NOW.0 - 3_600_000 + u64::from(n) * 1000);
    let steady = back((0..3600).map(|n| (at(n), 5)).collect());
    assert_eq!(steady.recommendations, [(at(0), 5), (at(3599), 5)]);
    assert_eq!(steady.since, Time(1_799_000_000_000));
    assert_eq!(back((0..3600).map(|n| (at(n), 5 + n % 2)).collect()).since, NOW);
}

#[test]
fn only_what_matters_is_worth_a_write() {
    let (state, memory, decision) = (state(), memory(), decision());
    let old = stored(&status(&state, &memory, Some(&decision)));
    assert!(worth_writing(None, &old));
    let mut again = decision.clone();
    again.at = Time(NOW.0 + 15_000);
    again.sequence += 1;
    again.fuel += 7;
    again.signals[0].mean = Some(0.91);
    again.signals[0].age_ms += 900;
    let mut memory_later = memory.clone();
    memory_later.sequence += 1;
    assert!(!worth_writing(Some(&old), &status(&state, &memory_later, Some(&again))));
    again.signals[0].quality = Quality::Stale;
    assert!(worth_writing(Some(&old), &status(&state, &memory, Some(&again))));
    // Another trouble behind the same quality is told; the same one in other numbers is not.
    let told = |note: &str| {
        let mut decision = decision.clone();
        decision.signals[0].note = Some(format!("there is no sample: {note}"));
        stored(&status(&state, &memory, Some(&decision)))
    };
    let timeout = told("Prometheus did not answer within 998ms; see prometheus.timeout");
    assert!(!worth_writing(Some(&timeout), &told("Prometheus did not answer within 1.002s; see prometheus.timeout")));
    assert!(worth_writing(Some(&timeout), &told("HTTP 500 from Prometheus: out of memory")));
    assert!(!worth_writing(Some(&told("HTTP 502 from Prometheus: id a1")), &told("HTTP 502 from Prometheus: id b2")));
    let moved = JobState { target: 8, ..state };
    assert!(worth_writing(Some(&old), &status(&moved, &memory, Some(&decision))));
}
