//! The command line with the policies that come with the product (`make policies` builds them).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts the program under test")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const ETO: &str = env!("CARGO_BIN_EXE_eto");

fn eto(args: &[&str]) -> Output {
    Command::new(ETO).args(args).stdin(Stdio::null()).output().unwrap()
}

fn eto_with(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(ETO)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its arguments may be gone before it has read anything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn policy(name: &str) -> PathBuf {
    let dir = std::env::var("ETO_POLICIES_OUT")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/policies"), PathBuf::from);
    let path = dir.join(format!("{name}.wasm"));
    assert!(path.exists(), "{} is not there: run `make policies` first", path.display());
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn out(o: &Output) -> String {
    assert!(o.status.success(), "{}: {}", o.status, String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout.clone()).unwrap()
}

fn refused(o: &Output) -> (Option<i32>, String) {
    assert!(o.stdout.is_empty(), "stdout is for data: {}", String::from_utf8_lossy(&o.stdout));
    (o.status.code(), String::from_utf8_lossy(&o.stderr).into_owned())
}

/// Two workers at 0.9 of one core each, against a target of 45 %.
fn busy() -> Value {
    let now = 1_800_000_000_000_u64;
    let long_ago = now - 3_600_000;
    json!({
        "now_ms": now, "seed": 7,
        "job": {"namespace": "team", "name": "train", "uid": "u", "framework": "PyTorch", "generation": 1, "round": 1,
            "created_ms": long_ago, "running_since_ms": long_ago, "failures": 0},
        "bounds": {"min": 1, "max": 10, "legal": [], "tolerance_up": 0.1, "tolerance_down": 0.1},
        "sizes": {"replicas": 2, "target": 2, "current": 2, "ready": 2},
        "workers": {"index": [0, 1], "phase": ["Running", "Running"], "ready": ["Ready", "Ready"],
            "started_ms": [long_ago, long_ago], "ready_changed_ms": [long_ago, long_ago], "deleting": [false, false],
            "node": [0, 1]},
        "signals": [{"name": "cpu-utilisation", "shape": "PerWorker", "quality": "Ok", "coverage": 1.0, "age_ms": 5000,
            "window_ms": 60000, "values": [0.9, 0.9], "requests": [1.0, 1.0], "sampled_ms": [now - 5000, now - 5000]}],
        "metrics": [{"kind": "Resource", "name": "cpu", "signal": 0, "target": {"Utilization": 45}}],
        "capacity": {"fits": 4_294_967_295_u32, "pending": 0},
        "resize": {"last_ms": 0, "last_cost_ms": 0, "last_from": 0, "last_refused": false},
        "config": "{}", "state": null,
    })
}

#[test]
fn every_policy_of_the_product_can_be_served_and_described() {
    for name in ["hpa", "gpu-efficiency", "target-tracking", "schedule", "spread", "binpack", "topology"] {
        let module = policy(name);
        let said = out(&eto(&["policy", "check", text(&module)]));
        assert!(said.contains("can be served") && said.contains(name), "{said}");
        let described: Value =
            serde_json::from_str(&out(&eto(&["policy", "describe", text(&module), "-o", "json"]))).unwrap();
        assert_eq!(described["name"], json!(name));
        assert!(described["digest"].as_str().unwrap().starts_with("sha256:"));
        let table = out(&eto(&["policy", "describe", text(&module)]));
        assert!(table.starts_with("Name"), "{table}");
        assert!(name != "target-tracking" || table.contains("moreMeansGrow | moreMeansShrink"), "{table}");
    }
}

#[test]
fn what_is_no_policy_is_refused_with_the_reason_and_status_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.wasm");
    fs::write(&file, "hello").unwrap();
    let (code, said) = refused(&eto(&["policy", "check", text(&file)]));
    assert_eq!(code, Some(1));
    assert!(
        said.contains("text.wasm can't be served (NotWasm): ") && said.contains("not a WebAssembly binary"),
        "{said}"
    );
    let (code, said) = refused(&eto(&["policy", "check", text(&dir.path().join("none.wasm"))]));
    assert_eq!(code, Some(3));
    assert!(said.contains("none.wasm") && said.contains("(Unreadable)"), "{said}");
    let json = eto(&["policy", "check", text(&file), "-o", "json"]);
    assert_eq!(json.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&answer["servable"], &answer["reason"]), (&json!(false), &json!("NotWasm")), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("not a WebAssembly binary"), "{answer}");
}

#[test]
fn what_is_no_file_is_refused_and_nothing_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let zero = dir.path().join("zero.wasm");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    let pipe = dir.path().join("pipe.wasm");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for module in [&zero, &pipe] {
        let (code, said) = refused(&eto(&["policy", "check", text(module)]));
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains(text(module)) && said.contains("not a regular file"), "{said}");
    }
    let module = dir.path().join("hpa.wasm");
    fs::copy(policy("hpa"), &module).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("hpa.toml")).unwrap();
    let (code, said) = refused(&eto(&["policy", "check", text(&module)]));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("hpa.toml") && said.contains("not a regular file"), "{said}");
    fs::remove_file(dir.path().join("hpa.toml")).unwrap();
    fs::write(dir.path().join("hpa.toml"), "a".repeat(100_000)).unwrap();
    let (code, said) = refused(&eto(&["policy", "check", text(&module)]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.len() < 2000 && !said.contains('\u{1b}'), "a message of {} bytes", said.len());
}

#[test]
fn columns_of_different_lengths_are_named() {
    let mut input = busy();
    input["workers"]["deleting"].as_array_mut().unwrap().push(json!(false));
    let asked = eto_with(&["policy", "eval", text(&policy("hpa"))], &input.to_string());
    let (code, said) = refused(&asked);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("workers.deleting"), "{said}");
}

#[test]
fn the_settings_beside_a_module_count() {
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("hpa.wasm");
    fs::copy(policy("hpa"), &module).unwrap();
    fs::write(dir.path().join("hpa.toml"), "[limits]\nfule = 1\n").unwrap();
    let (code, said) = refused(&eto(&["policy", "check", text(&module)]));
    assert_eq!(code, Some(1));
    assert!(said.contains("hpa.toml") && said.contains("fule"), "{said}");
    fs::write(dir.path().join("hpa.toml"), "[limits]\nfuel = 40000000\n").unwrap();
    let checked: Value = serde_json::from_str(&out(&eto(&["policy", "check", text(&module), "-o", "json"]))).unwrap();
    assert_eq!(checked["limits"]["fuel"], json!(40_000_000));
}

#[test]
fn asking_gives_a_decision_with_reasons_fuel_and_time() {
    let module = policy("hpa");
    let answer: Value =
        serde_json::from_str(&out(&eto_with(&["policy", "eval", text(&module)], &busy().to_string()))).unwrap();
    assert_eq!(answer["decision"]["target"], json!(4), "{answer}");
    assert!(answer["decision"]["reasons"][0]["code"].is_string());
    assert!(answer["fuel"].as_u64().unwrap() > 0 && answer["microseconds"].is_u64());
    let again: Value =
        serde_json::from_str(&out(&eto_with(&["policy", "eval", text(&module)], &busy().to_string()))).unwrap();
    assert_eq!(answer["fuel"], again["fuel"], "the same input burns the same fuel");
    let table = out(&eto_with(&["policy", "eval", text(&module), "-o", "table"], &busy().to_string()));
    assert!(table.contains("Target") && table.contains("Fuel"), "{table}");
}

#[test]
fn an_input_line_of_the_decision_log_is_taken_as_it_is() {
    let line = json!({"kind": "input", "hash": "sha256:00", "input": busy()});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("input.json");
    fs::write(&file, line.to_string()).unwrap();
    let module = policy("hpa");
    let answer: Value =
        serde_json::from_str(&out(&eto(&["policy", "eval", text(&module), "--input", text(&file)]))).unwrap();
    assert_eq!(answer["decision"]["target"], json!(4));
}

#[test]
fn so_is_one_of_a_placement_policy() {
    let nodes = json!({
        "free_cpu": [4.0, 8.0], "free_memory": [1e10, 1e10], "free_gpus": [0.0, 0.0],
        "total_cpu": [8.0, 8.0], "total_memory": [1e10, 1e10], "total_gpus": [0.0, 0.0],
        "zone": [0, 1], "rack": [0, 1], "members": [1, 0], "faults": [0, 0],
    });
    let members = json!({"index": [0], "node": [0], "ready": [true], "started_ms": [1], "protected": [true]});
    let input = json!({
        "now_ms": 1000, "seed": 1, "job": busy()["job"], "nodes": nodes, "members": members,
        "request": {"cpu": 1.0, "memory": 1e9, "gpus": 0.0}, "add": [1], "drop": 0, "config": "{}", "state": null,
    });
    let line = json!({"kind": "placement-input", "hash": "sha256:00", "input": input});
    let answer: Value =
        serde_json::from_str(&out(&eto_with(&["policy", "eval", text(&policy("spread"))], &line.to_string()))).unwrap();
    assert_eq!(answer["decision"]["places"][0]["node"], json!(1), "{answer}");
}

#[test]
fn a_wrong_input_names_the_field_and_the_way_to_the_schema() {
    let mut input = busy();
    input["sizes"]["ready"] = json!("two");
    let (code, said) = refused(&eto_with(&["policy", "eval", text(&policy("hpa"))], &input.to_string()));
    assert_eq!(code, Some(2));
    assert!(said.contains("sizes.ready") && said.contains("--schema"), "{said}");
}

#[test]
fn the_schema_takes_the_input() {
    let schema: Value =
        serde_json::from_str(&out(&eto(&["policy", "eval", text(&policy("hpa")), "--schema"]))).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&busy()));
    let mut wrong = busy();
    wrong["sizes"]["ready"] = json!("two");
    assert!(!validator.is_valid(&wrong));
    let placement: Value =
        serde_json::from_str(&out(&eto(&["policy", "eval", text(&policy("spread")), "--schema"]))).unwrap();
    assert!(placement["properties"]["nodes"].is_object());
}

#[test]
fn a_policy_that_does_not_answer_is_status_1_and_typed() {
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("hpa.wasm");
    fs::copy(policy("hpa"), &module).unwrap();
    let mut input = busy();
    input["config"] = json!("{\"nonsense\": true}");
    let (code, said) = refused(&eto_with(&["policy", "eval", text(&module)], &input.to_string()));
    assert_eq!(code, Some(1));
    assert!(said.contains("InvalidConfig") && said.contains("nonsense"), "{said}");
}

#[test]
fn the_crd_is_yaml_that_names_its_kind() {
    let crd: Value = serde_yaml::from_str(&out(&eto(&["crd"]))).unwrap();
    assert!(out(&eto(&["crd"])).contains("- \"Off\""), "kubectl reads a bare Off as false");
    assert_eq!(crd["kind"], json!("CustomResourceDefinition"));
    assert_eq!(crd["metadata"]["name"], json!("elasticjobs.elastic.ai"));
    let same: Value = serde_json::from_str(&out(&eto(&["crd", "-o", "json"]))).unwrap();
    assert_eq!(crd, same);
    assert_eq!(refused(&eto(&["crd", "-o", "table"])).0, Some(2));
}

#[test]
fn it_is_a_plugin_of_kubectl_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("kubectl-eto");
    std::os::unix::fs::symlink(ETO, &plugin).unwrap();
    let help = Command::new(&plugin).arg("--help").output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("kubectl eto"), "{help:?}");
}

#[test]
fn completions_and_help_are_there() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&eto(&["completions", shell])).contains("policy"), "{shell}");
    }
    assert!(out(&eto(&["--help"])).contains("Exit status"));
    assert_eq!(refused(&eto(&["policy", "chek"])).0, Some(2));
}
