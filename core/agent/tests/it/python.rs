//! The Python helper: its own tests, which need no agent, and a script with it under a real one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eto_membership::{Assignment, MemberState, Order};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::gateway::Gateway;
use crate::pod::{Pod, UID, assignment};

fn helper() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python").canonicalize().unwrap()
}

#[tokio::test]
async fn its_own_tests() {
    let run = Command::new("python3").args(["-B", "-m", "unittest"]).current_dir(helper()).output().await;
    let out = run.expect("python3 is needed: tools/setup.sh python");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Counts the samples of a data set: as small a training as there is.
const TRAIN: &str = r#"
import json, os, sys, time
import eto_elastic
path = os.path.join(os.environ["OUT"], "checkpoint")
job = eto_elastic.Job(poll_seconds=0.05, progress_seconds=0.05)
sampler = eto_elastic.ElasticSampler(60, job.rank, job.world, global_batch=4)
state = job.load_checkpoint(path, json.load) or {"step": 0, "seen": []}
if state["step"]:
    sampler.load_state_dict(state["sampler"])
step, seen = state["step"], state["seen"]

def save():
    whole = {"step": step, "seen": seen, "sampler": sampler.state_dict()}
    job.save_checkpoint(path, lambda f: f.write(json.dumps(whole).encode()), step)

for indices in sampler:
    # It stands for all ranks: it takes what each of them is dealt.
    for rank in range(job.world):
        peer = eto_elastic.ElasticSampler(60, rank, job.world, global_batch=4)
        peer.load_state_dict(sampler.state_dict())
        seen += next(iter(peer))
    sampler.advance()
    step += 1
    job.progress(step, samples=sampler.position, epoch=sampler.epoch, loss=1 / step)
    stop = job.should_stop(lambda mine: mine)
    # However slow the machine is: the resize comes in the middle.
    while job.generation == 1 and step == 5 and not stop:
        time.sleep(0.01)
        stop = job.should_stop(lambda mine: mine)
    if stop:
        save()
        job.exit_drained()
save()
"#;

/// Hangs in a way that no handler written in Python is ever called in.
const HANGS: &str = r#"
import os, signal
import eto_elastic
job = eto_elastic.Job()
assert job.print_stacks_when_hung()
job.progress(1)
def stuck_in_here():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with open(os.path.join(os.environ["OUT"], "fifo")) as fifo:
        fifo.read()
os.mkfifo(os.path.join(os.environ["OUT"], "fifo"))
stuck_in_here()
"#;

/// The other end of a pipe that a script reads from, once it does.
async fn written(fifo: &Path) -> pipe::Sender {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        match pipe::OpenOptions::new().open_sender(fifo) {
            Ok(sender) => return sender,
            Err(error) => assert!(Instant::now() < limit, "nobody reads {}: {error}", fifo.display()),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_script_that_hangs_says_where_it_stands() {
    let gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first").unwrap();
    let (path, fifo) = (helper(), folder.path().join("fifo"));
    let env = [("PYTHONPATH", path.to_str().unwrap()), ("PYTHONDONTWRITEBYTECODE", "1")];
    let mut pod = Pod::piped(folder, &gateway, &["python3", "-c", HANGS], &env);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    gateway.until("progress", |r| r.progress.is_some()).await;
    let _writer = written(&fifo).await;
    let stop = assignment(2, Order::Stop, &[UID]);
    gateway.assign(Assignment { hung: true, grace_ms: 3_000, ..stop });
    gateway.until("stopped", |r| r.generation == 2 && r.state == MemberState::Idle).await;
    gateway.assign(assignment(2, Order::End, &[UID]));
    pod.ended().await;
    let mut text = String::new();
    pod.agent.stderr.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert!(text.contains("in stuck_in_here"), "{text}");
}

#[tokio::test]
async fn a_script_with_it_trains_through_a_resize_and_loses_nothing() {
    let gateway = Gateway::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first").unwrap();
    let path = helper();
    let env = [("PYTHONPATH", path.to_str().unwrap()), ("PYTHONDONTWRITEBYTECODE", "1")];
    let mut pod = Pod::again(folder, &gateway, &["python3", "-c", TRAIN], &env);
    gateway.assign(assignment(1, Order::Run, &[UID, "other"]));
    let first = gateway.until("progress", |r| r.progress.is_some()).await;
    assert_eq!(first.progress.map(|p| p.generation), Some(1));
    gateway.assign(assignment(2, Order::Stop, &[UID]));
    let stopped = gateway.until("stopped", |r| r.generation == 2 && r.state == MemberState::Idle).await;
    let checkpoint = stopped.checkpoint.expect("it has told its checkpoint");
    assert!(checkpoint.generation == 1 && (1..=5).contains(&checkpoint.step), "{checkpoint:?}");
    gateway.assign(assignment(2, Order::Run, &[UID]));
    assert_eq!(pod.ended().await, 0);
    let last: serde_json::Value =
        serde_json::from_slice(&std::fs::read(pod.path().join("checkpoint")).unwrap()).unwrap();
    let mut seen: Vec<u64> = serde_json::from_value(last["seen"].clone()).unwrap();
    seen.sort_unstable();
    assert_eq!((seen, &last["step"]), ((0..60).collect(), &serde_json::json!(15)));
}
