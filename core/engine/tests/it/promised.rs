//! Numbers that the documentation gives to users and that other tests take from the code: who changes one changes it there
//! too.

use eto_engine::contract::MAX_TARGET;
use eto_engine::guard::{CIRCUIT_AFTER, CIRCUIT_CAP, CIRCUIT_FIRST, MODULE_UP_WINDOW, behavior};
use eto_engine::plan::{GATEWAY_PATIENCE, IMAGE_PATIENCE};
use eto_engine::state::{MAX_HISTORY, MAX_LOGS, MAX_NAMES};

use crate::common::secs;

#[test]
fn numbers_are_as_the_documentation_has_them() {
    // docs/lifecycle.md, "The history": changes, entries with the last lines of a log, names of pods.
    assert_eq!((MAX_HISTORY, MAX_LOGS, MAX_NAMES), (10, 3, 8));
    // docs/lifecycle.md, "Without the gateway"; docs/faults.md: etcd, and an image's registry.
    assert_eq!((GATEWAY_PATIENCE, IMAGE_PATIENCE), (secs(300), secs(15)));
    // docs/troubleshooting.md, `CircuitOpen`.
    assert_eq!((CIRCUIT_AFTER, CIRCUIT_FIRST, CIRCUIT_CAP), (3, secs(60), secs(1800)));
    // docs/user-guide.md, `behavior`: a module's window upwards, and HPA's downwards.
    assert_eq!((MODULE_UP_WINDOW, behavior::LEGACY_WINDOW), (secs(60), secs(300)));
    // docs/contract.md: the largest target that a policy may name. HPA's tolerance, which `metrics` have.
    assert_eq!((MAX_TARGET, behavior::TOLERANCE), (100_000, 0.1));
}
