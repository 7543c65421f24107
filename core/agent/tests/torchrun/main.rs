//! Real `torchrun` under real agents: members join and leave a run, its store is lost, and training goes on.
//! `tests/frameworks.sh` makes what it needs and runs it. Times are never judged, since the machine may be busy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start processes and read files")]

#[allow(dead_code, reason = "shared with the tests that need no torch")]
#[path = "../it/gateway.rs"]
mod gateway;
#[allow(dead_code, reason = "shared with the tests that need no torch")]
#[path = "../it/pod.rs"]
mod pod;
mod training;

use std::time::Duration;

use eto_membership::{MemberState, Order, Report};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use training::Training;

/// The run is of four rounds: two members, three, two again since one is killed; then the member that serves the store is
/// killed, and another run begins.
#[tokio::test]
async fn members_join_and_leave_and_a_lost_store_is_another_run() {
    let mut training = Training::start(1).await;
    training.add("a");
    training.add("b");
    training.joined(&["a", "b"]).await;
    training.order(1, 1, Order::Run, &["a", "b"]);
    training.world(1, 2).await;

    training.add("c");
    training.joined(&["c"]).await;
    let torchrun = training.torchrun("a");
    training.order(1, 2, Order::Run, &["a", "b", "c"]);
    training.world(1, 3).await;

    training.kill("c");
    training.order(1, 3, Order::Run, &["a", "b"]);
    training.world(1, 2).await;
    assert_eq!(training.torchrun("a"), torchrun, "through all of it the same torchrun has run");

    training.add("d");
    training.joined(&["d"]).await;
    training.kill("a");
    training.order(4, 4, Order::Stop, &["b", "d"]);
    // It may have ended for the loss of its store before it was told.
    let runs = |r: &Report| matches!(r.state, MemberState::Running { .. });
    training.until("b", Duration::from_secs(120), |r| r.generation == 4 && !runs(r)).await;
    training.order(4, 4, Order::Run, &["b", "d"]);
    training.world(4, 2).await;
    training.check_steps();
}

/// A member that is left out stops in its time, and the others go on.
#[tokio::test]
async fn a_shrink_stops_the_victim_alone() {
    let mut training = Training::start(1).await;
    for name in ["a", "b", "c"] {
        training.add(name);
    }
    training.joined(&["a", "b", "c"]).await;
    training.order(1, 1, Order::Run, &["a", "b", "c"]);
    training.world(1, 3).await;
    let torchrun = training.torchrun("b");
    training.order(1, 2, Order::Run, &["a", "b"]);
    training.until("c", Duration::from_secs(120), |r| r.generation == 2 && r.state == MemberState::Idle).await;
    training.world(1, 2).await;
    assert_eq!(training.torchrun("b"), torchrun);
    training.check_steps();
}

/// A `torchrun` that the kernel killed starts again in its pod and joins the others, whose own has lived on.
#[tokio::test]
async fn torchrun_that_a_signal_ended_joins_again() {
    let mut training = Training::start(2).await;
    training.add("a");
    training.add("b");
    training.joined(&["a", "b"]).await;
    training.order(1, 1, Order::Run, &["a", "b"]);
    training.world(1, 4).await;
    let torchrun = training.torchrun("a");
    kill(Pid::from_raw(training.torchrun("b")), Signal::SIGKILL).unwrap();
    let killed = MemberState::Exited { generation: 1, code: 137 };
    training.until("b", Duration::from_secs(120), |r| r.state == killed).await;
    training.order(1, 2, Order::Run, &["a", "b"]);
    training.world(1, 4).await;
    assert_eq!(training.torchrun("a"), torchrun);
    training.check_steps();
}

/// With torch's own default a member that joins waits for ever, so agents set another (`native_env`), which a template may
/// overrule. When this fails, torch has been mended, and the variable can go.
#[tokio::test]
async fn torch_needs_the_shared_store_of_its_rendezvous_switched_off() {
    let mut training = Training::start(1).await;
    training.set("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0");
    training.add("a");
    training.add("b");
    training.joined(&["a", "b"]).await;
    training.order(1, 1, Order::Run, &["a", "b"]);
    training.world(1, 2).await;
    training.add("c");
    training.joined(&["c"]).await;
    training.order(1, 2, Order::Run, &["a", "b", "c"]);
    assert!(!training.comes(1, 3, Duration::from_secs(60)).await, "a member joined with torch's default");
}
