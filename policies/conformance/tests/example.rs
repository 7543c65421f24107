//! The example policy, as a user has it: a project outside of this workspace, built for wasm and served by the host.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "copies and builds a project")]

use std::path::{Path, PathBuf};
use std::process::Command;

use eto_engine::policy::{FailureKind, ScalingPolicy};
use eto_policy_host::{HostSettings, ModuleSettings, PolicyHost};
use eto_policy_sdk::testing::{Kind, expand, read, run_all};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn the_example_is_short() {
    let text = std::fs::read_to_string(root().join("examples/policies/busy-grow/src/lib.rs")).unwrap();
    assert!(text.lines().count() < 40, "{} lines", text.lines().count());
}

#[test]
fn the_guide_shows_the_example_as_it_is() {
    let guide = std::fs::read_to_string(root().join("docs/policy-author.md")).unwrap();
    for file in ["src/lib.rs", "Cargo.toml", ".cargo/config.toml", "tests/fixtures.rs"] {
        let text = std::fs::read_to_string(root().join("examples/policies/busy-grow").join(file)).unwrap();
        let text = text.replace("../../../policy-sdk/rust", "../elastic-training-operator/policy-sdk/rust");
        assert!(guide.contains(text.trim()), "{file} is not in docs/policy-author.md as it is");
    }
}

/// Builds the example, with a line put in before the first of `evaluate` if there is one.
fn build(temp: &Path, line: Option<&str>) -> Vec<u8> {
    let project = temp.join("busy-grow");
    for file in ["Cargo.toml", ".cargo/config.toml", "src/lib.rs"] {
        std::fs::create_dir_all(project.join(file).parent().unwrap()).unwrap();
        let text = std::fs::read_to_string(root().join("examples/policies/busy-grow").join(file)).unwrap();
        let text = text.replace("../../../policy-sdk/rust", root().join("policy-sdk/rust").to_str().unwrap());
        let first = "        let Some(median)";
        let text = line.map_or_else(|| text.clone(), |line| text.replace(first, &format!("        {line}\n{first}")));
        std::fs::write(project.join(file), text).unwrap();
    }
    // The versions that this repository is tested with; cargo drops what the project does not need.
    std::fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let toolchain = Command::new(root().join("tools/wasm-toolchain.sh")).output().unwrap();
    assert!(toolchain.status.success(), "{}", String::from_utf8_lossy(&toolchain.stderr));
    let toolchain = String::from_utf8(toolchain.stdout).unwrap();
    // Dependencies are kept from run to run, beside everything else that is built.
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join("example");
    let built = Command::new("cargo")
        .arg(format!("+{}", toolchain.trim()))
        .args(["build", "--release", "--target", "wasm32-unknown-unknown"])
        .current_dir(&project)
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION")
        .env_remove("CARGO_UNSTABLE_FEATURE_UNIFICATION")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::read(target.join("wasm32-unknown-unknown/release/busy_grow.wasm")).unwrap()
}

#[test]
fn the_example_builds_outside_and_is_served() {
    let temp = tempfile::tempdir().unwrap();
    let host = PolicyHost::new(HostSettings::default()).unwrap();
    let policy = host.load("busy-grow", build(temp.path(), None), &ModuleSettings::default()).unwrap();
    let fixtures = read(root().join("examples/policies/busy-grow/fixtures/busy-grow.json")).unwrap();
    run_all(&fixtures, Kind::Scaling, 0, |input| {
        let answer = policy.evaluate(&serde_json::from_value(input).unwrap());
        let answer = answer.map_err(|f| (format!("{:?}", f.kind), f.message))?;
        Ok(serde_json::to_value(answer.value).unwrap())
    })
    .unwrap_or_else(|wrong| panic!("{wrong}"));

    // The same with a fault: the host learns where it is.
    let faulty = build(temp.path(), Some("assert!(input.seed == 0, \"seed {}\", input.seed);"));
    let line = 1 + std::fs::read_to_string(root().join("examples/policies/busy-grow/src/lib.rs"))
        .unwrap()
        .lines()
        .position(|l| l.contains("let Some(median)"))
        .unwrap();
    let policy = host.load("busy-grow", faulty, &ModuleSettings::default()).unwrap();
    let input = expand(Kind::Scaling, &serde_json::json!({ "seed": 13 })).unwrap();
    let failure = policy.evaluate(&serde_json::from_value(input).unwrap()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Trap);
    assert!(failure.message.contains(&format!("src/lib.rs:{line}: seed 13")), "{}", failure.message);
}
