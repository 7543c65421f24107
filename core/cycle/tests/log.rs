//! The decision log: lines that can be replayed, rotation within its cap, no waiting.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "reads what the log wrote")]

use std::fs;
use std::path::Path;

use eto_cycle::log::{DecisionLog, KeepInputs, Line, LogEntry, LogSettings, PlacementEntry, content_hash};
use eto_engine::contract::{PlacementDecision, PlacementInput, ScalingInput};
use eto_engine::decision::Decision;
use eto_engine::job::JobKey;
use eto_engine::policy::PolicyId;
use serde_json::json;

fn input(now: u64) -> ScalingInput {
    serde_json::from_value(json!({
        "now_ms": now, "seed": 1,
        "job": {"namespace": "team", "name": "train", "uid": "u", "framework": "PyTorch", "generation": 1, "round": 1,
            "created_ms": 0, "running_since_ms": 0, "failures": 0},
        "bounds": {"min": 1, "max": 4, "legal": [], "tolerance_up": 0.1, "tolerance_down": 0.1},
        "sizes": {"replicas": 2, "target": 2, "current": 2, "ready": 2},
        "workers": {"index": [], "phase": [], "ready": [], "started_ms": [], "ready_changed_ms": [], "deleting": [],
            "node": []},
        "signals": [], "metrics": [], "capacity": {"fits": 4_294_967_295_u32, "pending": 0},
        "resize": {"last_ms": 0, "last_cost_ms": 0, "last_from": 0, "last_refused": false},
        "config": "{}", "state": null,
    }))
    .unwrap()
}

fn entry(sequence: u64, target: u32) -> LogEntry {
    let decision: Decision = serde_json::from_value(json!({
        "uid": "u", "at": sequence, "sequence": sequence, "generation": 1, "policy": null, "from": 2, "proposed": target,
        "target": target, "apply": true, "answered": true, "limits": [], "reasons": [], "signals": [], "fuel": 0, "failure": null,
        "next_look": null,
    }))
    .unwrap();
    LogEntry {
        job: JobKey { namespace: "team".to_string(), name: "train".to_string() },
        decision,
        input: Some(input(sequence)),
    }
}

fn lines(path: &Path) -> Vec<Line> {
    fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn a_change_keeps_its_input_and_a_hold_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(LogSettings::new(dir.path())).unwrap();
    log.write(entry(1, 2));
    log.write(entry(2, 3));
    drop(log);
    let lines = lines(&dir.path().join("decisions.jsonl"));
    let [
        Line::Decision { input: Some(first), .. },
        Line::Input { hash, input: kept },
        Line::Decision { input: Some(second), decision, .. },
    ] = &lines[..]
    else {
        panic!("{lines:#?}")
    };
    assert_eq!(*first, content_hash(&input(1)).unwrap());
    assert_eq!((hash, content_hash(kept).unwrap()), (second, second.clone()));
    assert_eq!(*kept, input(2));
    assert_eq!(decision.target, 3);
}

#[test]
fn all_inputs_are_kept_where_all_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(LogSettings { inputs: KeepInputs::All, ..LogSettings::new(dir.path()) }).unwrap();
    log.write(entry(1, 2));
    drop(log);
    let lines = lines(&dir.path().join("decisions.jsonl"));
    let [Line::Input { hash, input: kept }, Line::Decision { input: Some(of_hold), .. }] = &lines[..] else {
        panic!("{lines:#?}")
    };
    assert_eq!((hash, kept), (of_hold, &input(1)));
}

#[test]
fn files_rotate_within_their_cap_and_lose_nothing_in_between() {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        LogSettings { max_bytes: 4096, max_files: 3, inputs: KeepInputs::None, ..LogSettings::new(dir.path()) };
    let log = DecisionLog::open(settings).unwrap();
    for n in 0..100 {
        log.write(entry(n, 3));
    }
    drop(log);
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["decisions.1.jsonl", "decisions.2.jsonl", "decisions.jsonl"]);
    let mut kept = Vec::new();
    for name in ["decisions.2.jsonl", "decisions.1.jsonl", "decisions.jsonl"] {
        let path = dir.path().join(name);
        assert!(fs::metadata(&path).unwrap().len() <= 4096);
        for line in lines(&path) {
            let Line::Decision { decision, .. } = line else { panic!("no inputs were to be kept") };
            kept.push(decision.sequence);
        }
    }
    let first = kept[0];
    assert_eq!(kept, (first..100).collect::<Vec<_>>());
}

#[test]
fn a_line_cut_off_by_a_crash_does_not_spoil_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.jsonl");
    fs::write(&path, "{\"kind\":\"decis").unwrap();
    let log = DecisionLog::open(LogSettings::new(dir.path())).unwrap();
    log.write(entry(1, 2));
    drop(log);
    let text = fs::read_to_string(&path).unwrap();
    assert!(serde_json::from_str::<Line>(text.lines().last().unwrap()).is_ok(), "{text}");
}

#[test]
fn every_entry_is_written_or_counted_as_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(LogSettings { queue: 1, ..LogSettings::new(dir.path()) }).unwrap();
    for n in 0..2000 {
        log.write(entry(n, 2));
    }
    let dropped = log.dropped();
    drop(log);
    let written = lines(&dir.path().join("decisions.jsonl")).len();
    assert_eq!(written as u64 + dropped, 2000);
}

#[test]
fn a_directory_that_can_not_be_made_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = DecisionLog::open(LogSettings::new(file.join("below"))).unwrap_err().to_string();
    assert!(error.contains("below") && error.contains("set another"), "{error}");
}

#[test]
fn what_a_placement_policy_was_shown_is_kept_with_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let input: PlacementInput = serde_json::from_value(json!({
        "now_ms": 1, "seed": 7,
        "job": {"namespace": "team", "name": "train", "uid": "u", "framework": "PyTorch", "generation": 1, "round": 1,
            "created_ms": 0, "running_since_ms": 0, "failures": 0},
        "nodes": {"free_cpu": [4.0], "free_memory": [1e9], "free_gpus": [0.0], "total_cpu": [8.0], "total_memory": [2e9],
            "total_gpus": [0.0], "zone": [0], "rack": [0], "members": [1], "faults": [0]},
        "members": {"index": [0], "node": [0], "ready": [true], "started_ms": [1], "protected": [true]},
        "request": {"cpu": 1.0, "memory": 1e6, "gpus": 0.0}, "add": [1], "drop": 0,
        "config": "{}", "state": {"version": 2, "bytes": [1, 2]},
    }))
    .unwrap();
    let decision = PlacementDecision { places: vec![], victims: vec![], reasons: vec![], state: Some(vec![3]) };
    let entry = |outcome: Result<PlacementDecision, String>| PlacementEntry {
        job: JobKey { namespace: "team".to_string(), name: "train".to_string() },
        policy: PolicyId { name: "near".to_string(), version: "1".to_string(), digest: "sha256:0".to_string() },
        input: input.clone(),
        outcome,
        fuel: 5,
    };
    let log = DecisionLog::open(LogSettings::new(dir.path())).unwrap();
    log.placed(entry(Ok(decision.clone())));
    log.placed(entry(Err("Trap: at lib.rs:3".to_string())));
    drop(log);
    let path = dir.path().join("decisions.jsonl");
    let all = lines(&path);
    let hash = content_hash(&input).unwrap();
    assert_eq!(all[0], Line::PlacementInput { hash: hash.clone(), input: input.clone() });
    let Line::Placement { input: of, decision: answered, failure, fuel, .. } = &all[1] else { panic!("{all:?}") };
    assert_eq!((of, answered, failure, fuel), (&hash, &Some(decision.clone()), &None, &5));
    let Line::Placement { decision: None, failure: Some(failure), .. } = &all[3] else { panic!("{all:?}") };
    assert!(failure.contains("lib.rs:3"));
    let bare = LogSettings { inputs: KeepInputs::None, dir: dir.path().join("bare"), ..LogSettings::new(dir.path()) };
    let log = DecisionLog::open(bare).unwrap();
    log.placed(entry(Ok(decision.clone())));
    drop(log);
    assert_eq!(lines(&dir.path().join("bare/decisions.jsonl")).len(), 1, "no inputs were to be kept");
}
