//! Whatever the bytes are, the host answers with a value or a typed error, and never panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::{Arc, LazyLock};

use common::{Guest, host, input};
use eto_engine::contract::KeptState;
use eto_engine::policy::{FailureKind, ScalingPolicy};
use eto_policy_host::{Limits, ModuleSettings, Policy, PolicyHost};
use proptest::prelude::*;

static HOST: LazyLock<Arc<PolicyHost>> = LazyLock::new(host);
static GOOD: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| [Guest::good().component(), Guest::good().core()]);

/// A guest that answers with the bytes that it was given as state.
static ECHO: LazyLock<Arc<Policy>> = LazyLock::new(|| {
    let guest = Guest::evaluate("(i32.load offset=256 (local.get $in))");
    HOST.load("echo", guest.component(), &ModuleSettings::default()).unwrap()
});

/// One change of a file.
#[derive(Clone, Debug)]
enum Edit {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Cut(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        4 => (at(), 0_u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        1 => at().prop_map(Edit::Remove),
        1 => at().prop_map(Edit::Cut),
        1 => (at(), at()).prop_map(|(from, to)| Edit::Repeat(from, to)),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    if bytes.is_empty() {
        return;
    }
    let size = bytes.len();
    match edit {
        Edit::Set(at, byte) => bytes[at.index(size)] = *byte,
        Edit::Flip(at, bit) => bytes[at.index(size)] ^= 1 << bit,
        Edit::Insert(at, byte) => bytes.insert(at.index(size), *byte),
        Edit::Remove(at) => drop(bytes.remove(at.index(size))),
        Edit::Cut(at) => bytes.truncate(at.index(size)),
        Edit::Repeat(from, to) => {
            let (from, to) = (from.index(size), to.index(size));
            let piece = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(to..to, piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_modules_are_refused_or_contained(core in any::<bool>(), edits in prop::collection::vec(edit(), 1..6)) {
        let mut bytes = GOOD[usize::from(core)].clone();
        for edit in &edits {
            apply(&mut bytes, edit);
        }
        let limits = Limits { fuel: 100_000, ..Limits::default() };
        if let Ok(policy) = HOST.load("mutant", bytes, &ModuleSettings { limits, ..ModuleSettings::default() }) {
            for failure in [policy.evaluate(&input(4)).err(), policy.wants("{}").err()].into_iter().flatten() {
                prop_assert!(!failure.message.contains("engine panicked"), "{}", failure);
            }
        }
    }

    #[test]
    fn arbitrary_answers_are_read_or_refused(
        head in prop::collection::vec(prop_oneof![Just(0_u32), Just(1), 0_u32..300_000, any::<u32>()], 10),
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(tail);
        let mut asked = input(2);
        asked.state = Some(KeptState { version: 1, bytes });
        match ECHO.evaluate(&asked) {
            Ok(answer) => prop_assert!(answer.value.target.is_none_or(|target| target <= 100_000)),
            Err(failure) => prop_assert!(
                !matches!(failure.kind, FailureKind::Trap | FailureKind::Missing | FailureKind::Deadline)
                    && !failure.message.contains("engine panicked"),
                "{}", failure
            ),
        }
    }
}
