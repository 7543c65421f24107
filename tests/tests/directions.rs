//! Which crate may depend on which, as docs/design.md says; read from `cargo metadata`. Dev-dependencies are free: a
//! test may run what it tests in the real host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "asks cargo for the workspace's metadata")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What each crate of the product may depend on, of ours. A crate that is not listed fails the test.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("eto-membership", &[]),
    ("eto-agent", &["eto-membership", "eto-rendezvous"]),
    ("eto-gateway", &["eto-membership"]),
    ("eto-rendezvous", &[]),
    ("eto-registry", &[]),
    ("eto-engine", &["eto-membership"]),
    ("eto-sim", &["eto-engine", "eto-membership"]),
    ("eto-api", &[]),
    ("eto-policy-host", &["eto-engine", "eto-policy-expect"]),
    ("eto-signals", &["eto-engine"]),
    ("eto-cycle", &["eto-api", "eto-engine", "eto-membership", "eto-policy-host", "eto-signals"]),
    (
        "eto-operator",
        &[
            "eto-api",
            "eto-cycle",
            "eto-engine",
            "eto-gateway",
            "eto-membership",
            "eto-policy-host",
            "eto-registry",
            "eto-signals",
        ],
    ),
    ("eto-local", &["eto-api", "eto-cycle", "eto-engine", "eto-membership", "eto-policy-host", "eto-signals"]),
    (
        "eto-cli",
        &[
            "eto-api",
            "eto-cycle",
            "eto-engine",
            "eto-gateway",
            "eto-local",
            "eto-membership",
            "eto-operator",
            "eto-policy-host",
            "eto-signals",
        ],
    ),
    ("eto-policy-expect", &[]),
    ("eto-policy-sdk", &["eto-policy-expect"]),
];

/// Crates of others that only some of ours may name.
const RESERVED: &[(&str, &[&str])] = &[
    ("wasmtime", &["eto-policy-host", "eto-benches"]),
    ("wit-bindgen", &["eto-policy-sdk"]),
    ("kube", &["eto-api", "eto-operator", "eto-cli", "eto-e2e", "eto-benches"]),
    ("reqwest", &["eto-signals", "eto-operator", "eto-registry", "eto-e2e", "eto-benches"]),
    ("etcd-client", &["eto-gateway"]),
    (
        "tokio",
        &[
            "eto-agent",
            "eto-signals",
            "eto-gateway",
            "eto-registry",
            "eto-rendezvous",
            "eto-policy-host",
            "eto-operator",
            "eto-local",
            "eto-cli",
            "eto-e2e",
            "eto-benches",
        ],
    ),
];

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("metadata has no list `{key}`"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Each crate of the workspace with what it depends on, dev-dependencies left out.
fn workspace() -> BTreeMap<String, BTreeSet<String>> {
    list(&metadata(), "packages")
        .iter()
        .map(|p| {
            let deps = list(p, "dependencies").iter().filter(|d| d["kind"] != "dev");
            (text(p, "name").to_owned(), deps.map(|d| text(d, "name").to_owned()).collect())
        })
        .collect()
}

/// All Rust text of a crate.
fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push_str(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Crates at the end of every direction: they may depend on all of ours.
fn is_outside(name: &str) -> bool {
    matches!(name, "eto-e2e" | "eto-benches")
}

#[test]
fn crates_depend_on_what_they_may() {
    let crates = workspace();
    assert!(crates.len() > DIRECTIONS.len(), "the workspace was not read: {crates:?}");
    let rules: BTreeMap<_, _> = DIRECTIONS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, deps) in &crates {
        let ours = deps.iter().filter(|d| crates.contains_key(*d));
        let allowed: &[&str] = match rules.get(name.as_str()) {
            Some(allowed) => allowed,
            None if name.starts_with("policy-") || name.starts_with("guest-") => &["eto-policy-sdk"],
            None if is_outside(name) => continue,
            None => {
                wrong.push(format!("{name} is not in the table of directions"));
                continue;
            }
        };
        wrong.extend(ours.filter(|d| !allowed.contains(&d.as_str())).map(|d| format!("{name} -> {d}")));
    }
    assert!(wrong.is_empty(), "not allowed: {wrong:#?}");
}

#[test]
fn reserved_crates_stay_where_they_belong() {
    let wrong: Vec<String> = workspace()
        .iter()
        .flat_map(|(name, deps)| {
            RESERVED
                .iter()
                .filter(|(reserved, by)| deps.contains(*reserved) && !by.contains(&name.as_str()))
                .map(move |(reserved, _)| format!("{name} -> {reserved}"))
        })
        .collect();
    assert!(wrong.is_empty(), "not allowed: {wrong:#?}");
}

/// Dependencies that a crate's own text does not name: macros of the SDK do.
fn is_named_by_macro(package: &str, name: &str) -> bool {
    package.starts_with("policy-") && matches!(name, "proptest" | "serde_json")
}

#[test]
fn dependencies_are_used() {
    let mut unused = Vec::new();
    for package in list(&metadata(), "packages").iter().filter(|p| p["name"] != "eto-benches") {
        let mut all = String::new();
        sources(Path::new(text(package, "manifest_path")).parent().unwrap(), &mut all);
        for dependency in list(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or(text(dependency, "name"));
            let path = name.replace('-', "_");
            let used = all.contains(&format!("{path}::")) || all.contains(&format!("use {path}"));
            if !used && !is_named_by_macro(text(package, "name"), name) {
                unused.push(format!("{} -> {name}", text(package, "name")));
            }
        }
    }
    unused.dedup();
    assert!(unused.is_empty(), "named in Cargo.toml, used nowhere: {unused:#?}");
}
