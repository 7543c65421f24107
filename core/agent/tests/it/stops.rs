//! Stopping: with patience, and with an end to it.

use eto_membership::{MemberState, Order};
use nix::sys::signal::Signal;

use crate::gateway::Gateway;
use crate::pod::{Pod, UID, assignment, children, eventually, runs};

/// A stop of the running round with this grace.
fn stop(gateway: &Gateway, generation: u64, grace_ms: u64) {
    let mut stop = assignment(generation, Order::Stop, &[UID]);
    stop.grace_ms = grace_ms;
    gateway.assign(stop);
}

async fn acknowledged(gateway: &Gateway, generation: u64) -> eto_membership::Report {
    gateway.until("stopped", |r| r.generation == generation && r.state == MemberState::Idle).await
}

async fn pid(pod: &Pod, name: &str) -> i32 {
    pod.file(name).await.parse().unwrap()
}

#[tokio::test]
async fn what_swallows_sigterm_is_killed_with_all_its_descendants() {
    let gateway = Gateway::start().await;
    // A grandchild in the group, and one in a session of its own whose parent is gone.
    let script = r#"
        trap 'echo > "$OUT/asked"' TERM
        sh -c 'trap "" TERM; echo $$ > "$OUT/grandchild"; while :; do sleep 1; done' &
        (setsid sh -c 'trap "" TERM; echo $$ > "$OUT/stray"; while :; do sleep 1; done' &)
        while :; do sleep 0.1; done
    "#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    let (grandchild, stray) = (pid(&pod, "grandchild").await, pid(&pod, "stray").await);
    let began = std::time::Instant::now();
    stop(&gateway, 2, 1_500);
    pod.file("asked").await;
    let report = acknowledged(&gateway, 2).await;
    assert!(began.elapsed().as_millis() >= 1_500, "it was killed before its time");
    assert_eq!(report.checkpoint, None);
    assert!(!runs(grandchild) && !runs(stray));
    assert_eq!(children(pod.pid().as_raw()), []);
}

#[tokio::test]
async fn orphans_that_end_are_no_zombies() {
    let gateway = Gateway::start().await;
    let script = r#"
        for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &); done
        sleep 0.5
        echo done > "$OUT/made"
        exec sleep 1000
    "#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("made").await;
    let agent = pod.pid().as_raw();
    eventually("one child and no zombie", || {
        let all = children(agent);
        (all.len() == 1 && all[0].1 != 'Z').then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_script_that_drains_is_left_its_helpers() {
    let gateway = Gateway::start().await;
    // The helper dies of SIGTERM, as a data loader does. The script needs it to write its checkpoint.
    let script = r#"
        sleep 1000 & helper=$!
        finish() {
            sleep 0.5
            kill -0 $helper || exit 1
            echo 41 > "$ETO_DRAIN_FILE"
            exit 143
        }
        trap finish TERM
        echo ready > "$OUT/ready"
        while :; do sleep 0.05; done
    "#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    stop(&gateway, 2, 30_000);
    let checkpoint = acknowledged(&gateway, 2).await.checkpoint.expect("a checkpoint");
    assert_eq!((checkpoint.generation, checkpoint.step), (1, 41));
}

#[tokio::test]
async fn what_a_shell_leaves_behind_is_asked_next_and_may_drain() {
    let gateway = Gateway::start().await;
    // The outer shell dies of SIGTERM at once; the script below it has not been asked by then.
    let script = r#"
        sh -c 'trap "sleep 0.3; exit 143" TERM; echo ready > "$OUT/ready"; while :; do sleep 0.05; done'
        echo "not reached"
    "#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    stop(&gateway, 2, 30_000);
    assert_eq!(acknowledged(&gateway, 2).await.checkpoint.map(|c| c.generation), Some(1));
}

#[tokio::test]
async fn death_by_sigterm_is_no_checkpoint() {
    let gateway = Gateway::start().await;
    let pod = Pod::start(&gateway, r#"echo > "$OUT/ready"; exec sleep 1000"#);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    stop(&gateway, 2, 30_000);
    assert_eq!(acknowledged(&gateway, 2).await.checkpoint, None);
}

#[tokio::test]
async fn the_drain_file_tells_a_checkpoint_while_the_script_runs() {
    let gateway = Gateway::start().await;
    let script = r#"echo 12 > "$ETO_DRAIN_FILE"; exec sleep 1000"#;
    let _pod = Pod::start(&gateway, script);
    gateway.assign(assignment(3, Order::Run, &[UID]));
    let report = gateway.until("a checkpoint", |r| r.checkpoint.is_some()).await;
    assert_eq!(report.checkpoint.map(|c| (c.generation, c.step)), Some((3, 12)));
    assert_eq!(report.state, MemberState::Running { generation: 3 });
}

#[tokio::test]
async fn the_pod_s_sigterm_stops_the_script_and_ends_with_its_code() {
    let gateway = Gateway::start().await;
    let script = r#"trap 'exit 9' TERM; echo > "$OUT/ready"; while :; do sleep 0.05; done"#;
    let mut pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    pod.signal(Signal::SIGTERM);
    assert_eq!(pod.ended().await, 9);
    let last = gateway.until("the last word", |r| r.state == MemberState::Exited { generation: 1, code: 9 }).await;
    assert!(last.leaving);
}

#[tokio::test]
async fn the_pod_s_sigterm_has_an_end_too() {
    let gateway = Gateway::start().await;
    let script = r#"trap '' TERM; echo > "$OUT/ready"; while :; do sleep 0.05; done"#;
    let mut pod = Pod::with(&gateway, script, &[("ETO_TERMINATION_GRACE_SECONDS", "2")]);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    pod.signal(Signal::SIGTERM);
    assert_eq!(pod.ended().await, 137);
}

/// A container whose stop signal is another one: runtimes send that to the agent, and the script waits for it.
#[tokio::test]
async fn a_script_is_asked_by_the_signal_of_its_container() {
    let gateway = Gateway::start().await;
    let script = r#"
        trap 'exit 1' TERM
        trap 'echo > "$OUT/asked"; exit 143' USR1
        echo > "$OUT/ready$ETO_ROUND"; while :; do sleep 0.05; done
    "#;
    let mut pod = Pod::with(&gateway, script, &[("ETO_STOP_SIGNAL", "SIGUSR1")]);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready1").await;
    stop(&gateway, 2, 30_000);
    assert_eq!(acknowledged(&gateway, 2).await.checkpoint.map(|c| c.generation), Some(1));
    assert!(pod.has("asked"));
    gateway.assign(assignment(2, Order::Run, &[UID]));
    pod.file("ready2").await;
    pod.signal(Signal::SIGUSR1);
    assert_eq!(pod.ended().await, 143);
    gateway.until("the last word", |r| r.leaving).await;
}

/// Runtimes send the agent the signal that an image has (SIGRTMIN+3 and SIGPWR are those of other init systems), and a
/// first process that does not listen for it never gets it.
#[tokio::test]
async fn a_stop_signal_that_no_script_waits_for_asks_by_sigterm() {
    for signal in ["37", "PWR"] {
        let gateway = Gateway::start().await;
        let script = r#"trap 'exit 143' TERM; echo > "$OUT/ready"; while :; do sleep 0.05; done"#;
        let mut pod = Pod::start(&gateway, script);
        gateway.assign(assignment(1, Order::Run, &[UID]));
        pod.file("ready").await;
        let kill = format!("kill -s {signal} {}", pod.pid());
        assert!(tokio::process::Command::new("sh").arg("-c").arg(kill).status().await.unwrap().success());
        assert_eq!(pod.ended().await, 143, "{signal}");
        gateway.until("the last word", |r| r.leaving && r.checkpoint.is_some()).await;
    }
}

#[tokio::test]
async fn other_signals_are_passed_on() {
    let gateway = Gateway::start().await;
    let script = r#"trap 'echo > "$OUT/dumped"' USR1; echo > "$OUT/ready"; while :; do sleep 0.05; done"#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    pod.file("ready").await;
    pod.signal(Signal::SIGUSR1);
    pod.file("dumped").await;
}
