//! From a changed file to the first decision by the new version, while callers ask without a pause; and how many
//! decisions fail meanwhile. Prints one line.
//!
//! `make policies` first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use eto_engine::contract::ScalingInput;
use eto_engine::policy::PolicyId;
use eto_policy_host::{HostSettings, PolicyHost, Registry, Watcher};
use eto_policy_sdk::testing::{Kind, expand};
use serde_json::json;

const SWAPS: u8 = 50;
const CALLERS: usize = 2;

fn main() {
    let dir = std::env::var_os("ETO_POLICIES_OUT").map(PathBuf::from);
    let dir = dir.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/policies")));
    let module = std::fs::read(dir.join("hpa.wasm")).expect("run `make policies` first");
    let watched = tempfile::tempdir().unwrap();
    std::fs::write(watched.path().join("hpa.wasm"), version(&module, 0)).unwrap();

    let registry = Registry::new();
    let host = PolicyHost::new(HostSettings::default()).expect("the engine starts");
    let watcher = Watcher::start(host, &registry, vec![watched.path().to_owned()]).expect("the watcher starts");
    let input = input();
    let (done, calls, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut took: Vec<Duration> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let answer = registry.snapshot().scaling("hpa").and_then(|policy| policy.evaluate(&input));
                    calls.fetch_add(1, Ordering::Relaxed);
                    failed.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
                }
            });
        }
        let mut serving = decide(&registry, &input);
        for number in 1..=SWAPS {
            let aside = watched.path().join(".aside");
            std::fs::write(&aside, version(&module, number)).unwrap();
            let start = Instant::now();
            std::fs::rename(&aside, watched.path().join("hpa.wasm")).unwrap();
            // The first decision by the new version, asked for again and again as an evaluation loop would.
            let next = loop {
                let by = decide(&registry, &input);
                if by != serving {
                    break by;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            took.push(start.elapsed());
            serving = next;
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(watcher);
    took.sort();
    let at = |share: usize| took[(took.len() - 1) * share / 100].as_millis();
    println!(
        "hot swap: {SWAPS} swaps, file change to first decision by the new version p50 {} ms, p95 {} ms, max {} ms; {} decisions beside them, {} failed",
        at(50),
        at(95),
        at(100),
        calls.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed),
    );
    assert_eq!(failed.load(Ordering::Relaxed), 0, "no decision may be lost");
}

/// The same module with another digest: a custom section more.
fn version(module: &[u8], number: u8) -> Vec<u8> {
    let mut bytes = module.to_vec();
    bytes.extend_from_slice(&[0, 3, 1, b'v', number]);
    bytes
}

fn decide(registry: &Registry, input: &ScalingInput) -> PolicyId {
    let policy = registry.snapshot().scaling("hpa").expect("always served");
    policy.evaluate(input).expect("always answered");
    policy.id().clone()
}

fn input() -> ScalingInput {
    let short = json!({
        "workers": 8,
        "signals": {"cpu-utilisation": [0.5, 0.6, 0.7, 0.8, 0.5, 0.6, 0.7, 0.8]},
        "metrics": [{"kind": "Resource", "name": "cpu", "signal": 0, "target": {"Utilization": 60}}],
    });
    serde_json::from_value(expand(Kind::Scaling, &short).unwrap()).unwrap()
}
