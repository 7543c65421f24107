//! Hostile guests: each is refused or contained with its own typed reason, and disturbs nothing beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;
#[path = "common/hostile.rs"]
mod guests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::{Guest, host, input, placement_input};
use eto_engine::policy::{CallFailure, PlacementPolicy, ScalingPolicy};
use eto_policy_host::{HostSettings, LoadError, ModuleSettings, Policy, PolicyHost, PoolUse};
use guests::{Ask, Contained, FUEL_FIRST, Refused, bad_policies, greedy, lying, not_policies, trapping};

fn refuse(host: &PolicyHost, all: Vec<Refused>) {
    for case in all {
        let settings = ModuleSettings { limits: FUEL_FIRST, ..ModuleSettings::default() };
        let Err(error) = host.load("candidate", case.bytes, &settings) else {
            panic!("{} was served", case.what);
        };
        assert_eq!(error.reason(), case.reason, "{}: {error}", case.what);
        assert!(error.to_string().contains(case.says), "{}: {error}", case.what);
    }
}

fn ask(policy: &Policy, how: Ask) -> Result<u64, CallFailure> {
    match how {
        Ask::Evaluate => policy.evaluate(&input(8)).map(|answer| answer.fuel),
        Ask::Wants => policy.wants("{}").map(|answer| answer.fuel),
        Ask::Migrate => ScalingPolicy::migrate(policy, 1, b"state").map(|answer| answer.fuel),
        Ask::Place => policy.place(&placement_input()).map(|answer| answer.fuel),
    }
}

fn contain(host: &PolicyHost, all: Vec<Contained>) {
    let good = host.load("good", Guest::good().component(), &ModuleSettings::default()).unwrap();
    for case in all {
        let settings = ModuleSettings { limits: case.limits, ..ModuleSettings::default() };
        let policy = host
            .load("hostile", case.guest.component(), &settings)
            .unwrap_or_else(|error| panic!("{} should load: {error}", case.what));
        let Err(failure) = ask(&policy, case.ask) else { panic!("{} was answered", case.what) };
        assert_eq!(format!("{:?}", failure.kind), case.kind, "{}: {failure}", case.what);
        assert!(failure.message.contains(case.says), "{}: {failure}", case.what);
        assert!(failure.kind.is_fault(), "{}", case.what);
        assert!(good.evaluate(&input(8)).is_ok(), "{} disturbed a good policy", case.what);
        assert_eq!(host.pool_use().unwrap(), PoolUse::default(), "{} kept a slot", case.what);
    }
}

#[test]
fn files_that_are_no_policies_are_refused() {
    refuse(&host(), not_policies());
}

#[test]
fn policies_that_are_broken_from_the_start_are_refused() {
    let host = host();
    refuse(&host, bad_policies());
    assert_eq!(host.pool_use().unwrap(), PoolUse::default());
}

#[test]
fn a_file_over_the_cap_is_refused() {
    let bytes = Guest::good().component();
    let host = PolicyHost::new(HostSettings { max_module_bytes: bytes.len() as u64 - 1, ..HostSettings::default() });
    let error = host.unwrap().load("big", bytes, &ModuleSettings::default()).unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
}

#[test]
fn a_policy_with_a_deep_appendix_does_no_harm() {
    let host = host();
    let bytes = [Guest::good().component(), guests::nested(50_000)].concat();
    let error = host.load("deep", bytes, &ModuleSettings::default()).unwrap_err();
    assert_eq!(error.reason(), "Invalid", "{error}");
}

#[test]
fn every_way_of_cutting_a_module_off_is_refused() {
    let host = host();
    for bytes in [Guest::good().component(), Guest::good().core()] {
        for end in (0..bytes.len()).step_by(61) {
            let error = host.load("cut", bytes[..end].to_vec(), &ModuleSettings::default()).unwrap_err();
            let reason = error.reason();
            // A cut between two sections leaves a valid file that lacks what comes after.
            assert!(["Truncated", "Invalid", "NotAComponent", "NotAPolicy"].contains(&reason), "at {end}: {error}");
        }
    }
}

#[test]
fn guests_that_use_too_much_are_stopped() {
    contain(&host(), greedy());
}

#[test]
fn guests_that_trap_say_where() {
    contain(&host(), trapping());
}

#[test]
fn answers_that_break_the_contract_are_bad_answers() {
    contain(&host(), lying());
}

/// Ends the thread beside, also when this one fails.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hostile_guests_do_not_disturb_a_good_one_that_runs_beside_them() {
    let host = host();
    // The deadline is a clock's: on a busy machine it would tell nothing of the guests beside it.
    let patient = ModuleSettings { limits: FUEL_FIRST, ..ModuleSettings::default() };
    let good = host.load("good", Guest::good().component(), &patient).unwrap();
    let expected = good.evaluate(&input(64)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut calls = 0;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(good.evaluate(&input(64)).unwrap(), expected);
                calls += 1;
            }
            calls
        });
        let finish = Finish(&done);
        for case in greedy().into_iter().chain(trapping()).chain(lying()) {
            let settings = ModuleSettings { limits: case.limits, ..ModuleSettings::default() };
            let policy = host.load("hostile", case.guest.component(), &settings).unwrap();
            assert!(ask(&policy, case.ask).is_err(), "{}", case.what);
        }
        drop(finish);
        assert!(beside.join().unwrap() > 0);
    });
    assert_eq!(host.pool_use().unwrap(), PoolUse::default());
}

/// Counts what guests log.
struct Counter(Arc<AtomicU32>);

impl tracing::Subscriber for Counter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "eto_policy_host::guest" && *metadata.level() == tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_log_flood_is_cut_and_the_answer_counts() {
    let flood = |length: u32| {
        let mut guest = Guest::good();
        let text = guest.image.put(&[b'x'; 4000]);
        guest.items = format!(
            "(func $flood (local $n i32) (loop $l
               (call $log (i32.const 1) (i32.const {text}) (i32.const {length}))
               (local.set $n (i32.add (local.get $n) (i32.const 1)))
               (br_if $l (i32.lt_u (local.get $n) (i32.const 1000)))))"
        );
        guest.before = "(call $flood)".to_owned();
        guest
    };
    let host = host();
    for (length, most) in [(10, 64), (4000, 5)] {
        let policy = host.load("flood", flood(length).component(), &ModuleSettings::default()).unwrap();
        let lines = Arc::new(AtomicU32::new(0));
        let answer = tracing::subscriber::with_default(Counter(Arc::clone(&lines)), || policy.evaluate(&input(1)));
        assert_eq!(answer.unwrap().value.target, Some(3));
        let lines = lines.load(Ordering::Relaxed);
        assert!(lines > 0 && lines <= most, "{lines} lines of {length} bytes");
    }
}
