//! What a policy call costs: `hpa` in a fresh instance, with fuel, deadline and limits on, beside the same function as
//! native code. Compare within one run; the numbers of two machines say nothing about each other.
//!
//! `make policies` first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use divan::{Bencher, black_box};
use eto_engine::contract::ScalingInput;
use eto_engine::policy::ScalingPolicy as _;
use eto_policy_host::{HostSettings, ModuleSettings, Policy, PolicyHost};
use eto_policy_sdk::ScalingPolicy as _;
use eto_policy_sdk::testing::{Kind, expand};
use policy_hpa::{Hpa, HpaConfig};
use serde_json::{Value, json};

fn main() {
    let policy = &*HPA;
    assert!(policy.evaluate(&input(64)).is_ok(), "the guest answers");
    println!(
        "{} {}: {} fuel for 64 workers",
        policy.id().name,
        policy.id().digest,
        policy.evaluate(&input(64)).unwrap().fuel
    );
    divan::main();
}

static HOST: LazyLock<Arc<PolicyHost>> = LazyLock::new(|| {
    let host = PolicyHost::new(HostSettings::default()).expect("the engine starts");
    println!("pooled: {}", host.pooled());
    host
});

static HPA: LazyLock<Arc<Policy>> = LazyLock::new(|| {
    let dir = std::env::var_os("ETO_POLICIES_OUT").map(PathBuf::from);
    let dir = dir.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/policies")));
    let bytes = std::fs::read(dir.join("hpa.wasm")).expect("run `make policies` first");
    HOST.load("hpa", bytes, &ModuleSettings::default()).expect("the guest loads")
});

/// A job of so many workers with one CPU metric, as JSON of the contract.
fn question(workers: usize) -> Value {
    let values: Vec<f64> = (0..workers).map(|at| 0.5 + 0.4 * f64::from(u32::try_from(at % 8).unwrap()) / 8.0).collect();
    let short = json!({
        "workers": workers,
        "signals": {"cpu-utilisation": values},
        "metrics": [{"kind": "Resource", "name": "cpu", "signal": 0, "target": {"Utilization": 60}}],
    });
    expand(Kind::Scaling, &short).expect("the short form is right")
}

fn input(workers: usize) -> ScalingInput {
    serde_json::from_value(question(workers)).expect("the contract's JSON")
}

const WORKERS: [usize; 4] = [1, 8, 64, 512];

#[divan::bench(args = WORKERS)]
fn native(bencher: Bencher<'_, '_>, workers: usize) {
    let input: eto_policy_sdk::ScalingInput = serde_json::from_value(question(workers)).unwrap();
    let config = HpaConfig::default();
    bencher.bench(|| Hpa::evaluate(black_box(&input), &config));
}

/// As the guest does it: the config is read from its text in every call.
#[divan::bench(args = WORKERS)]
fn native_with_config_from_text(bencher: Bencher<'_, '_>, workers: usize) {
    let input: eto_policy_sdk::ScalingInput = serde_json::from_value(question(workers)).unwrap();
    bencher.bench(|| Hpa::evaluate(black_box(&input), &Hpa::read_config(&input.config).unwrap()));
}

#[divan::bench(args = WORKERS)]
fn fresh_instance(bencher: Bencher<'_, '_>, workers: usize) {
    let input = input(workers);
    let policy = &*HPA;
    bencher.bench(|| policy.evaluate(black_box(&input)));
}
