//! How it ends: codes passed on, failures that wait, the job's end.

use std::os::unix::fs::PermissionsExt;

use eto_membership::{MemberState, Order};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::gateway::Gateway;
use crate::pod::{Pod, UID, assignment, eventually, runs};

#[tokio::test]
async fn success_is_told_and_ends_the_agent() {
    let gateway = Gateway::start().await;
    let mut pod = Pod::start(&gateway, r#"(setsid sleep 1000 & echo $! > "$OUT/left"); exit 0"#);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    assert_eq!(pod.ended().await, 0);
    gateway.until("done", |r| r.state == MemberState::Exited { generation: 1, code: 0 }).await;
    let left: i32 = pod.file("left").await.parse().unwrap();
    eventually("what it left behind is gone", || (!runs(left)).then_some(())).await;
}

#[tokio::test]
async fn failure_is_told_and_waits_for_the_next_round_and_the_end_ends_with_its_code() {
    let gateway = Gateway::start().await;
    let mut pod = Pod::start(&gateway, "exit $((ETO_ROUND + 2))");
    gateway.assign(assignment(1, Order::Run, &[UID]));
    gateway.until("failed", |r| r.state == MemberState::Exited { generation: 1, code: 3 }).await;
    gateway.assign(assignment(2, Order::Run, &[UID]));
    gateway.until("failed again", |r| r.state == MemberState::Exited { generation: 2, code: 4 }).await;
    gateway.assign(assignment(2, Order::End, &[UID]));
    assert_eq!(pod.ended().await, 4);
}

#[tokio::test]
async fn death_by_a_signal_is_told_as_a_shell_tells_it() {
    let gateway = Gateway::start().await;
    let _pod = Pod::start(&gateway, "kill -SEGV $$");
    gateway.assign(assignment(1, Order::Run, &[UID]));
    gateway.until("failed", |r| r.state == MemberState::Exited { generation: 1, code: 139 }).await;
}

/// As a training that prints a progress bar and then its traceback.
const FAILS: &str = r#"
for n in 1 2 3; do printf '\r%s/3' $n >&2; done
echo >&2; echo "on stdout"
(echo "Traceback: round $ETO_ROUND" >&2)
echo "ValueError: bad shape" >&2
exit 1
"#;

#[tokio::test]
async fn the_last_lines_of_stderr_are_told_and_all_of_it_passes_through() {
    for (setting, told) in [("1", "3/3\nTraceback: round 1\nValueError: bad shape"), ("0", "")] {
        let gateway = Gateway::start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "first").unwrap();
        let mut pod = Pod::piped(folder, &gateway, &["sh", "-c", FAILS], &[("ETO_LAST_LINES", setting)]);
        gateway.assign(assignment(1, Order::Run, &[UID]));
        let failed = gateway.until("failed", |r| r.state == MemberState::Exited { generation: 1, code: 1 }).await;
        assert_eq!(failed.last_lines, told);
        gateway.assign(assignment(1, Order::End, &[UID]));
        assert_eq!(pod.ended().await, 1);
        let mut text = String::new();
        pod.agent.stderr.take().unwrap().read_to_string(&mut text).await.unwrap();
        let expected = "\r1/3\r2/3\r3/3\nTraceback: round 1\nValueError: bad shape\n";
        assert!(text.contains(expected), "{text:?}");
        assert!(!text.contains("on stdout"), "{text:?}");
    }
}

#[tokio::test]
async fn that_the_kernel_took_a_process_for_its_use_of_memory_is_told_until_the_next_start() {
    let gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first").unwrap();
    // The kernel's part: the counter of the container, and SIGKILL to the process.
    let counter = folder.path().join("memory.events");
    std::fs::write(&counter, "oom 0\noom_kill 1\n").unwrap();
    let dies = "if [ $ETO_ROUND = 1 ]; then printf 'oom 1\\noom_kill 2\\n' >$ETO_CGROUP/memory.events; fi; kill -9 $$";
    let cgroup = folder.path().to_str().unwrap().to_owned();
    let _pod = Pod::again(folder, &gateway, &["sh", "-c", dies], &[("ETO_CGROUP", &cgroup)]);
    for (round, told) in [(1, true), (2, false)] {
        gateway.assign(assignment(round, Order::Run, &[UID]));
        let ended = MemberState::Exited { generation: round, code: 137 };
        assert_eq!(gateway.until("killed", |r| r.state == ended).await.out_of_memory, told, "round {round}");
    }
}

#[tokio::test]
async fn a_command_that_is_not_there_is_a_failure_like_any_other() {
    let gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first").unwrap();
    let _pod = Pod::again(folder, &gateway, &["/no/such/program"], &[]);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    gateway.until("failed", |r| r.state == MemberState::Exited { generation: 1, code: 127 }).await;
}

#[tokio::test]
async fn a_missing_setting_is_named() {
    let out = Command::new(env!("CARGO_BIN_EXE_eto-agent")).args(["run", "true"]).env_clear().output().await.unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(text.contains("ETO_GATEWAY is not set"), "{text}");
}

#[tokio::test]
async fn it_installs_itself() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("eto-agent");
    for _ in 0..2 {
        let install = Command::new(env!("CARGO_BIN_EXE_eto-agent")).arg("install").arg(&destination).status();
        assert!(install.await.unwrap().success());
    }
    assert_eq!(std::fs::metadata(&destination).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    let version = Command::new(&destination).arg("--version").output().await.unwrap();
    assert!(String::from_utf8(version.stdout).unwrap().starts_with("eto-agent "));
    let missing = folder.path().join("no/such/folder/eto-agent");
    let out = Command::new(env!("CARGO_BIN_EXE_eto-agent")).arg("install").arg(&missing).output().await.unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(String::from_utf8(out.stderr).unwrap().contains("no/such/folder"));
}
