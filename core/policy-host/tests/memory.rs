//! Memory of the process: it goes back to where it was after hostile guests. Alone in its file, since it measures the
//! whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;
#[path = "common/hostile.rs"]
mod guests;

use common::{host, input, placement_input};
use eto_engine::policy::{PlacementPolicy, ScalingPolicy};
use eto_policy_host::{ModuleSettings, PolicyHost, PoolUse};

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn round(host: &PolicyHost) {
    for case in guests::not_policies().into_iter().chain(guests::bad_policies()) {
        let settings = ModuleSettings { limits: guests::FUEL_FIRST, ..ModuleSettings::default() };
        assert!(host.load("refused", case.bytes, &settings).is_err(), "{}", case.what);
    }
    for case in guests::greedy().into_iter().chain(guests::trapping()).chain(guests::lying()) {
        let settings = ModuleSettings { limits: case.limits, ..ModuleSettings::default() };
        let policy = host.load("contained", case.guest.component(), &settings).unwrap();
        let failed = match case.ask {
            guests::Ask::Evaluate => policy.evaluate(&input(8)).is_err(),
            guests::Ask::Wants => policy.wants("{}").is_err(),
            guests::Ask::Migrate => ScalingPolicy::migrate(&*policy, 1, b"state").is_err(),
            guests::Ask::Place => policy.place(&placement_input()).is_err(),
        };
        assert!(failed, "{}", case.what);
    }
}

#[test]
fn memory_goes_back_to_where_it_was() {
    let host = host();
    // What stays after the first rounds is the pool's warm slots and the allocator's own reserve.
    for _ in 0..3 {
        round(&host);
    }
    let before = resident();
    for _ in 0..6 {
        round(&host);
    }
    let after = resident();
    assert_eq!(host.pool_use().unwrap(), PoolUse::default());
    // Each round makes bombs of 16 MiB and loads 60 modules: what leaked would be far more than this.
    assert!(after < before + 16 * 1024, "{before} KiB before, {after} KiB after");
}
