//! The components that ship, in the host that serves them: HPA's rows, every fixture of every policy, and the example of
//! `docs/contract.md`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests read files and build guests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use eto_engine::policy::{CallFailure, PlacementPolicy, ScalingPolicy};
use eto_policy_host::{HostSettings, ModuleSettings, Policy, PolicyHost, PolicyKind};
use eto_policy_sdk::testing::{Answered, Kind, read, run_all};
use serde_json::Value;

const POLICIES: [&str; 7] = ["binpack", "gpu-efficiency", "hpa", "schedule", "spread", "target-tracking", "topology"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where the guests are, built from the present sources.
fn guests() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `make policies` has most often built them already; then this is quick.
        let out = std::env::var_os("ETO_POLICIES_OUT").map_or_else(|| root().join("target/policies"), PathBuf::from);
        let build =
            Command::new(root().join("tools/build-policies.sh")).env("ETO_POLICIES_OUT", &out).output().unwrap();
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
        out
    })
}

fn load(name: &str) -> Arc<Policy> {
    static HOST: OnceLock<Arc<PolicyHost>> = OnceLock::new();
    let host = HOST.get_or_init(|| PolicyHost::new(HostSettings::default()).unwrap());
    let bytes = std::fs::read(guests().join(format!("{name}.wasm"))).unwrap();
    host.load(name, bytes, &ModuleSettings::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn ask(policy: &Policy, input: Value) -> Answered {
    let failed = |f: CallFailure| (format!("{:?}", f.kind), f.message);
    let decision = match policy.kind() {
        PolicyKind::Scaling => {
            let answer = policy.evaluate(&serde_json::from_value(input).unwrap()).map_err(failed)?;
            serde_json::to_value(answer.value)
        }
        PolicyKind::Placement => {
            let answer = policy.place(&serde_json::from_value(input).unwrap()).map_err(failed)?;
            serde_json::to_value(answer.value)
        }
    };
    Ok(decision.unwrap())
}

fn kind(policy: &Policy) -> Kind {
    match policy.kind() {
        PolicyKind::Scaling => Kind::Scaling,
        PolicyKind::Placement => Kind::Placement,
    }
}

#[test]
fn hpa_answers_every_row_in_the_host() {
    let policy = load("hpa");
    let rows = policy_conformance::hpa::rows();
    if let Err(wrong) = run_all(&rows, Kind::Scaling, 0, |input| ask(&policy, input)) {
        panic!("{wrong}");
    }
    println!("{} rows; not the policy's: {:#?}", rows.len(), policy_conformance::hpa::NOT_THE_POLICYS);
}

#[test]
fn every_fixture_holds_in_the_host() {
    for name in POLICIES {
        let policy = load(name);
        let files = std::fs::read_dir(root().join("policies").join(name).join("fixtures")).unwrap();
        let mut cases = 0;
        for file in files {
            let fixtures = read(file.unwrap().path()).unwrap();
            let version = policy.description().state_version;
            cases += run_all(&fixtures, kind(&policy), version, |input| ask(&policy, input))
                .unwrap_or_else(|wrong| panic!("{name}:\n{wrong}"));
        }
        assert!(cases > 0, "{name} has no fixtures");
    }
}

#[test]
fn every_policy_describes_itself_and_its_config() {
    for name in POLICIES {
        let policy = load(name);
        let description = policy.description();
        assert_eq!(description.name, name);
        assert_eq!(description.version, env!("CARGO_PKG_VERSION"));
        let schema: Value = serde_json::from_str(&description.config_schema).unwrap();
        for (key, property) in schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{name}: config.{key} has no text");
        }
    }
}

/// The JSON of a fenced block of a page, after its marker.
fn block(page: &str, marker: &str) -> Value {
    let after = page.split_once(marker).unwrap_or_else(|| panic!("no {marker}")).1;
    let text = after.split_once("```json").unwrap().1.split_once("```").unwrap().0;
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{marker}: {e}"))
}

#[test]
fn the_example_of_the_contract_is_what_the_guest_answers() {
    let page = std::fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let answer = ask(&load("hpa"), block(&page, "<!-- example: input -->")).unwrap();
    let wanted = block(&page, "<!-- example: answer -->");
    assert_eq!(answer, wanted, "the answer is\n{}", serde_json::to_string_pretty(&answer).unwrap());
}

#[test]
fn columns_that_disagree_in_length_are_no_trap() {
    let page = std::fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let mut input = block(&page, "<!-- example: input -->");
    input["workers"]["phase"] = serde_json::json!([]);
    let answer = ask(&load("hpa"), input).unwrap();
    assert_eq!(answer["target"], Value::Null);
}
