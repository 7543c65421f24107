//! Starting, in rounds that name the pod and in no others.

use eto_membership::{MemberState, Order};

use crate::gateway::Gateway;
use crate::pod::{Pod, UID, assignment, eventually};

/// Notes the round and its place in it, and trains until it is asked to stop.
const NOTES: &str = r#"
echo "$RANK $WORLD_SIZE $MASTER_PORT $ETO_WORLD_SIZE" > "$OUT/round.$ETO_ROUND.new"
mv "$OUT/round.$ETO_ROUND.new" "$OUT/round.$ETO_ROUND"
exec sleep 1000
"#;

#[tokio::test]
async fn a_round_that_names_the_pod_starts_and_the_next_one_starts_it_anew() {
    let gateway = Gateway::start().await;
    let pod = Pod::start(&gateway, NOTES);
    let joined = gateway.until("joined", |_| true).await;
    assert_eq!((joined.generation, joined.state, joined.address.as_str()), (0, MemberState::Idle, "127.0.0.1"));

    gateway.assign(assignment(1, Order::Stop, &["other", UID]));
    gateway.until("stopped", |r| r.generation == 1 && r.state == MemberState::Idle).await;
    assert!(!pod.has("round.1"), "it waits for the order to run");
    gateway.assign(assignment(1, Order::Run, &["other", UID]));
    gateway.until("runs", |r| r.state == MemberState::Running { generation: 1 }).await;
    assert_eq!(pod.file("round.1").await, "1 2 29501 2");

    gateway.assign(assignment(2, Order::Stop, &[UID]));
    gateway.until("acknowledged", |r| r.generation == 2 && r.state == MemberState::Idle).await;
    gateway.assign(assignment(2, Order::Run, &[UID]));
    assert_eq!(pod.file("round.2").await, "0 1 29502 1");
    let last = gateway.until("runs again", |r| r.state == MemberState::Running { generation: 2 }).await;
    assert_eq!(last.incarnation, joined.incarnation);
    let sequences: Vec<u64> = gateway.reports().iter().map(|r| r.sequence).collect();
    assert!(sequences.windows(2).all(|w| w[0] < w[1]), "{sequences:?}");
}

#[tokio::test]
async fn members_are_told_as_a_hostfile_and_by_a_discovery_script() {
    let gateway = Gateway::start().await;
    let script =
        r#"(cat "$ETO_HOSTFILE"; "$ETO_HOST_DISCOVERY_SCRIPT") > "$OUT/new"; mv "$OUT/new" "$OUT/hosts"; sleep 1000"#;
    let pod = Pod::start(&gateway, script);
    gateway.assign(assignment(1, Order::Run, &["other", UID]));
    let host = "127.0.0.1";
    assert_eq!(pod.file("hosts").await, format!("{host} slots=1\n{host} slots=1\n{host}:1\n{host}:1"));
}

#[tokio::test]
async fn stale_rounds_and_rounds_of_others_start_nothing() {
    let gateway = Gateway::start().await;
    let pod = Pod::start(&gateway, NOTES);
    gateway.assign(assignment(5, Order::Run, &["other"]));
    gateway.until("told", |r| r.generation == 5).await;
    gateway.tell(assignment(4, Order::Run, &[UID])).await;
    gateway.tell(assignment(6, Order::Run, &[UID])).await;
    assert_eq!(pod.file("round.6").await, "0 1 29506 1");
    gateway.tell(assignment(6, Order::Stop, &[UID])).await;
    gateway.tell(assignment(3, Order::End, &[UID])).await;
    // In the order of the stream: what comes after the stale ones shows that they had no effect.
    gateway.tell(assignment(7, Order::Run, &[UID])).await;
    pod.file("round.7").await;
    assert!(gateway.reports().windows(2).all(|w| w[0].generation <= w[1].generation));
    assert!(!pod.has("round.4") && !pod.has("round.5"));
}

#[tokio::test]
async fn several_processes_get_ranks_of_their_own_and_end_together() {
    let gateway = Gateway::start().await;
    let script = r#"
        echo "$RANK $LOCAL_RANK $WORLD_SIZE" > "$OUT/rank.$RANK.new"; mv "$OUT/rank.$RANK.new" "$OUT/rank.$RANK"
        [ "$LOCAL_RANK" = 1 ] || exec sleep 1000
        while [ ! -e "$OUT/fail" ]; do sleep 0.05; done
        exit 7
    "#;
    let pod = Pod::with(&gateway, script, &[("ETO_PROCESSES", "3")]);
    let mut run = assignment(1, Order::Run, &["other", UID]);
    run.round.members.iter_mut().for_each(|m| m.processes = 3);
    gateway.assign(run);
    for (rank, want) in [(3, "3 0 6"), (4, "4 1 6"), (5, "5 2 6")] {
        assert_eq!(pod.file(&format!("rank.{rank}")).await, want);
    }
    std::fs::write(pod.path().join("fail"), "").unwrap();
    let report = gateway.until("failed", |r| matches!(r.state, MemberState::Exited { .. })).await;
    assert_eq!(report.state, MemberState::Exited { generation: 1, code: 7 });
    let agent = pod.pid().as_raw();
    eventually("nothing is left", || crate::pod::children(agent).is_empty().then_some(())).await;
}

/// A command that starts its processes by itself is started once: it says so by what its script calls, or the job does.
#[tokio::test]
async fn a_launcher_in_a_script_is_started_once() {
    let starts = async |script: &str, more: &[(&str, &str)]| {
        let gateway = Gateway::start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "first\n").unwrap();
        let run = folder.path().join("run.sh");
        std::fs::write(&run, format!("#!/bin/sh\necho $$ > \"$OUT/start.$$\"\n{script}\n")).unwrap();
        let env = [&[("ETO_PROCESSES", "2")], more].concat();
        let pod = Pod::again(folder, &gateway, &["sh", run.to_str().unwrap()], &env);
        let mut run = assignment(1, Order::Run, &["other", UID]);
        run.round.members.iter_mut().for_each(|m| m.processes = 2);
        gateway.assign(run);
        gateway.until("ended", |r| matches!(r.state, MemberState::Exited { .. })).await;
        let all = std::fs::read_dir(pod.path()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        all.filter(|name| name.starts_with("start.")).count()
    };
    // All that are to be there are, before the first of them ends.
    let all = "while [ $(ls \"$OUT\" | grep -c start.) -lt ${ETO_LOCAL_WORLD_SIZE:-1} ]; do sleep 0.02; done";
    let calls = &format!("{all}\ntorchrun() {{ exit 3; }}\ntorchrun --standalone train.py");
    assert_eq!(starts(calls, &[]).await, 1);
    assert_eq!(starts(calls, &[("ETO_LAUNCHER", "agent")]).await, 2);
    let plain = &format!("{all}\nexit 3");
    assert_eq!(starts(plain, &[]).await, 2);
    assert_eq!(starts(plain, &[("ETO_LAUNCHER", "command")]).await, 1);
}

#[tokio::test]
async fn an_agent_started_again_in_its_pod_waits_for_a_later_round() {
    let gateway = Gateway::start().await;
    let mut pod = Pod::start(&gateway, NOTES);
    gateway.assign(assignment(1, Order::Run, &["other", UID]));
    pod.file("round.1").await;
    // As the kernel does it to a container without memory: everything is gone at once.
    let processes = crate::pod::children(pod.pid().as_raw());
    pod.agent.kill().await.unwrap();
    for (pid, _) in processes {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    std::fs::remove_file(pod.path().join("round.1")).unwrap();
    let folder = std::mem::replace(&mut pod.folder, tempfile::tempdir().unwrap());
    let pod = Pod::again(folder, &gateway, &["sh", "-c", NOTES], &[]);
    let lost = MemberState::Exited { generation: 1, code: 137 };
    gateway.until("it tells what is lost", |r| r.generation == 1 && r.state == lost).await;
    gateway.assign(assignment(2, Order::Run, &["other", UID]));
    pod.file("round.2").await;
    assert!(!pod.has("round.1"), "it began by itself while its peers ran");
}
