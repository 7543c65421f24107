//! Real processes under the real supervisor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use eto_local::process::{Launch, ProcessEvent, RunId, Running, Supervisor, start};
use eto_local::procfs::Proc;
use eto_local::supervise::Further;
use tokio::sync::mpsc;

/// Far more than anything here takes; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(30);

struct Worker {
    running: Running,
    events: mpsc::Receiver<(RunId, ProcessEvent)>,
}

fn spawn(script: &str, env: &[(&str, &str)]) -> Worker {
    let launch = Launch {
        command: ["bash", "-c", script].map(String::from).to_vec(),
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..Launch::default()
    };
    begin(&launch)
}

fn begin(launch: &Launch) -> Worker {
    let supervisor = Supervisor { program: env!("CARGO_BIN_EXE_eto-supervise").into(), arguments: Vec::new() };
    let (sender, events) = mpsc::channel(64);
    let id = RunId { uid: "u".to_owned(), run: 1 };
    Worker { running: start(&supervisor, launch, id, sender).unwrap(), events }
}

impl Worker {
    async fn next(&mut self) -> ProcessEvent {
        tokio::time::timeout(LIMIT, self.events.recv()).await.expect("an event").expect("the channel is open").1
    }

    async fn line(&mut self) -> String {
        loop {
            match self.next().await {
                ProcessEvent::Output { line } => return line,
                ProcessEvent::Started { .. } => {}
                other @ ProcessEvent::Ended { .. } => panic!("{other:?} before a line"),
            }
        }
    }

    async fn end(&mut self) -> (i32, Option<String>) {
        loop {
            if let ProcessEvent::Ended { code, message } = self.next().await {
                return (code, message);
            }
        }
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.ok().and_then(|text| eto_local::procfs::parse_stat(&text)).is_some_and(|stat| !stat.is_zombie())
}

async fn gone(pid: &str) {
    let begun = Instant::now();
    while is_alive(pid) {
        assert!(begun.elapsed() < LIMIT, "process {pid} still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn output_environment_and_exit_code_come_through() {
    let mut worker = spawn(r#"echo "rank $RANK"; echo problem >&2; exit 3"#, &[("RANK", "2")]);
    // Its start is told by its supervisor and its lines by itself: a quick one's lines may be there first.
    let (mut started, mut lines) = (0, Vec::new());
    let end = loop {
        match worker.next().await {
            ProcessEvent::Started { pid } => started = pid,
            ProcessEvent::Output { line } => lines.push(line),
            ProcessEvent::Ended { code, message } => break (code, message),
        }
    };
    lines.sort();
    assert_eq!((lines, end), (vec!["problem".to_owned(), "rank 2".to_owned()], (3, None)));
    assert!(started > 1);
}

#[tokio::test]
async fn a_polite_worker_ends_on_sigterm_with_its_own_code() {
    let mut worker =
        spawn("exec 2>/dev/null; trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.01; done", &[]);
    assert_eq!(worker.line().await, "up");
    worker.running.stop(LIMIT).await;
    assert_eq!(worker.line().await, "saved");
    assert_eq!(worker.end().await, (143, None), "its own code, not a death by signal");
}

#[tokio::test]
async fn a_deaf_worker_is_killed_at_the_deadline_and_not_before() {
    let mut worker = spawn("trap '' TERM; echo up; while :; do sleep 0.01; done", &[]);
    assert_eq!(worker.line().await, "up");
    let grace = Duration::from_millis(700);
    let asked = Instant::now();
    worker.running.stop(grace).await;
    let (code, message) = worker.end().await;
    assert!(asked.elapsed() >= grace);
    assert_eq!((code, message.as_deref()), (137, Some("ended by signal 9")));
}

#[tokio::test]
async fn what_left_the_group_is_ended_too() {
    // The child is in a session of its own and its parent is gone: only the subreaper still has it.
    let mut worker = spawn("(setsid bash -c 'echo $BASHPID; exec sleep 1000' &) ; sleep 1000", &[]);
    let child = worker.line().await;
    assert!(is_alive(&child));
    worker.running.stop(Duration::ZERO).await;
    worker.end().await;
    assert!(!is_alive(&child));
}

#[tokio::test]
async fn when_the_owner_lets_go_the_worker_ends() {
    let mut worker = spawn("echo $$; exec sleep 1000", &[]);
    let pid = worker.line().await;
    let Worker { running, .. } = worker; // the link is closed by the drop
    drop(running);
    gone(&pid).await;
}

/// Left the worker's session, ignores what asks it to end, and keeps the output open.
const DAEMON: &str = r#"setsid bash -c 'trap "" TERM HUP; echo $$; (setsid sleep 1000 &); sleep 1000' & disown"#;

#[tokio::test]
async fn when_the_supervisor_is_killed_nothing_that_the_worker_started_is_left() {
    for script in ["echo $$; exec sleep 1000".to_owned(), format!("{DAEMON}; wait; sleep 1000")] {
        let mut worker = spawn(&script, &[]);
        let pid = worker.line().await;
        let supervisor = nix::unistd::Pid::from_raw(worker.running.supervisor);
        nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
        let (code, message) = worker.end().await;
        assert_eq!((code, message.as_deref()), (137, Some("its supervisor was killed")), "{script}");
        gone(&pid).await;
    }
}

#[tokio::test]
async fn a_supervisor_that_does_nothing_is_killed_in_time_with_all_below_it() {
    let mut worker = spawn(&format!("{DAEMON}; kill -STOP $PPID; sleep 1000"), &[]);
    let daemon = worker.line().await;
    worker.running.stop(Duration::ZERO).await;
    let (code, message) = worker.end().await;
    assert_eq!((code, message.as_deref()), (137, Some("its supervisor did not stop it in time, and was killed")));
    gone(&daemon).await;
}

#[tokio::test]
async fn a_command_that_does_not_exist_says_so() {
    let missing = vec!["/no/such/program".to_owned()];
    let alone = Launch { command: missing.clone(), ..Launch::default() };
    let further = vec![Further { command: missing, env: BTreeMap::new() }];
    let sleeps = ["sleep", "1000"].map(str::to_owned).to_vec();
    for launch in [alone, Launch { command: sleeps, further, ..Launch::default() }] {
        let (code, message) = begin(&launch).end().await;
        assert_eq!(code, 127);
        assert!(message.unwrap().contains("/no/such/program: No such file"));
    }
}

/// A worker of several processes: their scripts, with `RANK` 0, 1, ...
fn several(scripts: &[&str]) -> Worker {
    let command = |script: &str| ["bash", "-c", script].map(String::from).to_vec();
    let env = |rank: usize| BTreeMap::from([("RANK".to_owned(), rank.to_string())]);
    let further = (1..scripts.len()).map(|rank| Further { command: command(scripts[rank]), env: env(rank) }).collect();
    begin(&Launch { command: command(scripts[0]), env: env(0), further, directory: None })
}

#[tokio::test]
async fn processes_of_one_worker_have_ranks_of_their_own_and_end_together() {
    let mut worker = several(&["echo rank $RANK"; 3]);
    let mut lines = Vec::new();
    let end = loop {
        match worker.next().await {
            ProcessEvent::Output { line } => lines.push(line),
            ProcessEvent::Started { .. } => {}
            ProcessEvent::Ended { code, message } => break (code, message),
        }
    };
    lines.sort();
    assert_eq!((lines, end), (["rank 0", "rank 1", "rank 2"].map(str::to_owned).to_vec(), (0, None)));
}

#[tokio::test]
async fn one_of_several_that_fails_takes_the_others_with_it_and_its_code_is_the_workers() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let waits = format!("echo $$; touch {at}/$RANK; exec sleep 1000");
    let fails = format!("until [ -e {at}/0 -a -e {at}/2 ]; do sleep 0.01; done; exit 7");
    let mut worker = several(&[&waits, &fails, &waits]);
    let pids = [worker.line().await, worker.line().await];
    assert_eq!(worker.end().await, (7, None));
    for pid in pids {
        gone(&pid).await;
    }
}

#[tokio::test]
async fn all_of_several_are_stopped() {
    let polite = "trap 'exit 143' TERM; echo up; while :; do sleep 0.01; done 2>/dev/null";
    let mut worker = several(&[polite; 2]);
    assert_eq!([worker.line().await, worker.line().await], ["up", "up"]);
    worker.running.stop(LIMIT).await;
    assert_eq!(worker.end().await, (143, None));
    // The first to end is no failure that the others would have 5 seconds after.
    let slow = "trap 'sleep 6; exit 143' TERM; echo up; while :; do sleep 0.01; done 2>/dev/null";
    let mut worker = several(&[polite, slow]);
    assert_eq!([worker.line().await, worker.line().await], ["up", "up"]);
    worker.running.stop(LIMIT).await;
    assert_eq!(worker.end().await, (143, None));
}

#[tokio::test]
async fn cpu_and_memory_of_a_real_tree_are_measured() {
    // A busy grandchild: the use of the whole tree counts.
    let mut worker = spawn("bash -c 'echo up; while :; do :; done'", &[]);
    assert_eq!(worker.line().await, "up");
    let proc = Proc::of_this_machine();
    let begun = Instant::now();
    let usage = loop {
        let usage = proc.tree_usage(&proc.table(), worker.running.supervisor).expect("it runs");
        if usage.cpu_seconds >= 0.2 {
            break usage;
        }
        assert!(begun.elapsed() < LIMIT, "no CPU time was seen: {usage:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // One busy thread can't have used more than the time that has passed (and some ticks).
    assert!(usage.cpu_seconds <= begun.elapsed().as_secs_f64() + 0.5, "{usage:?}");
    assert!(usage.memory_bytes > 100_000.0 && usage.processes >= 1, "{usage:?}");
    worker.running.stop(Duration::ZERO).await;
    worker.end().await;
    assert_eq!(proc.tree_usage(&proc.table(), worker.running.supervisor), None);
}
