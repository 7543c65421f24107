//! Good guests: loaded, described and asked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use common::{Guest, Said, host, input, placement_input};
use eto_engine::contract::KeptState;
use eto_engine::policy::{FailureKind, PlacementPolicy, ScalingPolicy};
use eto_policy_host::{HostSettings, Limits, LoadError, ModuleSettings, PolicyHost, PolicyKind};

fn settings() -> ModuleSettings {
    ModuleSettings::default()
}

#[test]
fn a_component_and_a_core_module_serve_alike() {
    let host = host();
    assert!(host.pooled(), "this machine has room for a small pool");
    for bytes in [Guest::good().component(), Guest::good().core()] {
        let policy = host.load("good", bytes, &settings()).unwrap();
        assert_eq!(policy.kind(), PolicyKind::Scaling);
        assert_eq!(policy.description().name, "test-guest");
        assert_eq!(policy.id().name, "good");
        assert_eq!(policy.id().version, "1.0.0");
        assert!(policy.id().digest.starts_with("sha256:") && policy.id().digest.len() == 71);
        let answer = policy.evaluate(&input(64)).unwrap();
        assert_eq!(answer.value.target, Some(3));
        assert_eq!(answer.value.reasons[0].code, "Because");
        assert_eq!(answer.value.reasons[0].value, Some(0.5));
        assert_eq!(answer.fuel, policy.evaluate(&input(64)).unwrap().fuel, "fuel depends on the input alone");
    }
}

#[test]
fn every_field_reaches_the_guest() {
    // evaluate answers a word of the input that it is told to look at: its `config` gives no way to say so, so a guest
    // is made per offset.
    let host = host();
    let mut asked = input(5);
    asked.state = Some(KeptState { version: 9, bytes: vec![1, 2, 3] });
    // Offsets of `scaling-input` in the canonical ABI.
    for (offset, expected, what) in [
        (88, 1, "bounds.min"),
        (92, 100, "bounds.max"),
        (120, 5, "sizes.replicas"),
        (132, 5, "sizes.ready"),
        (140, 5, "workers.index length"),
        (180, 5, "workers.deleting length"),
        (196, 1, "signals length"),
        (204, 1, "metrics length"),
        (208, 10, "capacity.fits"),
        (268, 9, "state.version"),
        (276, 3, "state.bytes length"),
    ] {
        let body = format!(
            "(i32.store (i32.const 512) (i32.const 0))
             (i32.store (i32.const 516) (i32.const 1))
             (i32.store (i32.const 520) (i32.load (i32.add (local.get $in) (i32.const {offset}))))
             (i32.store (i32.const 524) (i32.const 600)) (i32.store (i32.const 528) (i32.const 1))
             (i32.store (i32.const 600) (i32.const 700)) (i32.store (i32.const 604) (i32.const 1))
             (i32.store8 (i32.const 700) (i32.const 65))
             (i32.const 512)"
        );
        let policy = host.load("probe", Guest::evaluate(&body).component(), &settings()).unwrap();
        assert_eq!(policy.evaluate(&asked).unwrap().value.target, Some(expected), "{what}");
    }
}

#[test]
fn wants_and_migrate_are_asked_too() {
    let policy = host().load("good", Guest::good().component(), &settings()).unwrap();
    let wants = policy.wants("{}").unwrap().value;
    assert_eq!((wants[0].name.as_str(), wants[0].high), ("cpu-utilisation", 1.0));
    assert_eq!(ScalingPolicy::migrate(&*policy, 1, b"old").unwrap().value.len(), 4);
    assert_eq!(ScalingPolicy::state_version(&*policy), 1);
}

#[test]
fn a_placement_policy_places_and_does_not_scale() {
    let policy = host().load("place", Guest::placement().component(), &settings()).unwrap();
    assert_eq!(policy.kind(), PolicyKind::Placement);
    assert_eq!(policy.place(&placement_input()).unwrap().value.places, vec![]);
    let failure = policy.evaluate(&input(1)).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Missing);
    assert!(failure.message.contains("is a placement policy"), "{}", failure.message);
}

#[test]
fn the_config_is_merged_and_checked_before_the_guest_sees_it() {
    let guest = Guest {
        schema: r#"{"type":"object","required":["target"],"properties":{"target":{"type":"number"}}}"#.to_owned(),
        ..Guest::good()
    };
    let host = host();
    let beside = ModuleSettings::from_toml("[limits]\nfuel = 1_000_000\n[config]\ntarget = 0.5\n").unwrap();
    let policy = host.load("good", guest.component(), &beside).unwrap();
    assert_eq!(policy.settings().limits.fuel, 1_000_000);
    assert_eq!(policy.merge_config("{}").unwrap(), r#"{"target":0.5}"#);
    let mut asked = input(1);
    asked.config = r#"{"target":"high"}"#.to_owned();
    let failure = policy.evaluate(&asked).unwrap_err();
    assert_eq!(failure.kind, FailureKind::InvalidConfig);
    assert!(failure.message.contains("config.target"), "{}", failure.message);

    let wrong = ModuleSettings::from_toml("[config]\ntarget = \"high\"\n").unwrap();
    let error = host.load("good", guest.component(), &wrong).unwrap_err();
    assert!(matches!(&error, LoadError::BadDefaults { detail } if detail.contains("config.target")), "{error}");
    // A key that the jobs have to give may be missing from the defaults.
    let policy = host.load("good", guest.component(), &settings()).unwrap();
    assert_eq!(policy.evaluate(&input(1)).unwrap_err().kind, FailureKind::InvalidConfig);
}

#[test]
fn settings_files_say_what_is_wrong_with_them() {
    let error = ModuleSettings::from_toml("[limits]\nfule = 1\n").unwrap_err().to_string();
    assert!(error.contains("fule") && error.contains("fuel"), "{error}");
    let host = host();
    for limits in [Limits { fuel: 0, ..Limits::default() }, Limits { memory_bytes: 1 << 40, ..Limits::default() }] {
        let error = host.load("good", Guest::good().component(), &ModuleSettings { limits, ..settings() }).unwrap_err();
        assert!(matches!(error, LoadError::LimitOutOfRange { .. }), "{error}");
    }
}

#[test]
fn compiled_modules_are_found_again_by_the_next_host() {
    let dir = tempfile::tempdir().unwrap();
    let with_cache =
        || HostSettings { pool_slots: 2, cache_dir: Some(dir.path().to_owned()), ..HostSettings::default() };
    let files = || std::fs::read_dir(dir.path().join("compiled-policies")).unwrap().count();
    for _ in 0..2 {
        let host = PolicyHost::new(with_cache()).unwrap();
        assert!(host.cached());
        let policy = host.load("good", Guest::good().component(), &settings()).unwrap();
        assert_eq!(policy.evaluate(&input(8)).unwrap().value.target, Some(3));
        assert_eq!(files(), 1);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = PolicyHost::new(HostSettings { pool_slots: 0, ..HostSettings::default() }).unwrap_err();
    assert!(error.to_string().contains("pool_slots is 0"), "{error}");
}

#[test]
fn more_callers_than_slots_wait_and_are_all_answered() {
    let host = PolicyHost::new(HostSettings { pool_slots: 2, ..HostSettings::default() }).unwrap();
    let policy = host.load("good", Guest::good().component(), &settings()).unwrap();
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..16).map(|_| scope.spawn(|| (0..50).all(|_| policy.evaluate(&input(8)).is_ok()))).collect();
        for caller in callers {
            assert!(caller.join().unwrap());
        }
    });
    assert_eq!(host.pool_use().unwrap(), eto_policy_host::PoolUse::default());
}

#[test]
fn what_a_reason_says_can_not_drive_a_terminal() {
    let mut guest = Guest::good();
    guest.reasons = vec![Said { message: b"one\n\x1b[2Jtwo".to_vec(), ..Said::default() }];
    let policy = host().load("good", guest.component(), &settings()).unwrap();
    assert_eq!(policy.evaluate(&input(1)).unwrap().value.reasons[0].message, "one  [2Jtwo");
}
