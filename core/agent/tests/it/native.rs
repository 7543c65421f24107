//! Rounds of a run: `torchrun` goes on from one to the next, and its store is served here.

use std::net::{SocketAddr, TcpListener};

use eto_membership::{Assignment, MemberState, Native, Order};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::free_port;
use crate::gateway::{Gateway, PATIENCE};
use crate::pod::{Pod, UID, assignment};

/// What a `torchrun` is to an agent: a command of that name, which notes what it was told.
const TORCHRUN: &str = r#"#!/bin/sh
trap 'echo > "$OUT/asked"; exit 1' TERM
echo "$PET_NNODES $PET_RDZV_BACKEND $PET_RDZV_ENDPOINT $PET_RDZV_ID $ETO_ROUND" > "$OUT/run.$$.new"
mv "$OUT/run.$$.new" "$OUT/started.$ETO_ROUND"
while :; do sleep 0.05; done
"#;

fn pod(gateway: &Gateway) -> Pod {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first\n").unwrap();
    let program = folder.path().join("torchrun");
    std::fs::write(&program, TORCHRUN).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Pod::again(folder, gateway, &[program.to_str().unwrap(), "train.py"], &[])
}

fn of_run(run: u64, port: u16, generation: u64, order: Order, uids: &[&str]) -> Assignment {
    let mut of = assignment(generation, order, uids);
    of.round.port = port;
    Assignment { native: Some(Native { run, min: 1, max: 4, alone: false }), ..of }
}

/// A client of the store, as torch's is.
struct Client(TcpStream);

impl Client {
    async fn connect(port: u16) -> Client {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
        stream.write_all(&[&[0][..], &0x3C85_F7CE_u32.to_le_bytes()].concat()).await.unwrap();
        Client(stream)
    }

    fn text(text: &str) -> Vec<u8> {
        [&u64::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes()].concat()
    }

    async fn set(&mut self, key: &str, value: &str) {
        self.0.write_all(&[vec![1], Client::text(key), Client::text(value)].concat()).await.unwrap();
    }

    async fn get(&mut self, key: &str) -> String {
        self.0.write_all(&[vec![3], Client::text(key)].concat()).await.unwrap();
        let length = self.0.read_u64_le().await.unwrap();
        let mut value = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut value).await.unwrap();
        String::from_utf8(value).unwrap()
    }
}

async fn works_for(gateway: &Gateway, generation: u64) {
    let what = format!("works for {generation}");
    gateway.until(&what, |r| r.state == MemberState::Running { generation } && r.generation == generation).await;
}

#[tokio::test]
async fn members_come_and_go_and_what_runs_goes_on_with_its_store() {
    let gateway = Gateway::start().await;
    let mut pod = pod(&gateway);
    let (port, next) = (free_port(), free_port());
    assert!(gateway.until("joined", |_| true).await.native, "it says that it can");
    gateway.assign(of_run(1, port, 1, Order::Run, &[UID, "other"]));
    works_for(&gateway, 1).await;
    assert_eq!(pod.file("started.1").await, format!("1:4 c10d 127.0.0.1:{port} job-uid-1 1"));
    let processes = || crate::pod::children(pod.pid().as_raw()).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
    let process = processes();
    let mut client = Client::connect(port).await;
    client.set("key", "value").await;

    gateway.assign(of_run(1, port, 2, Order::Run, &[UID, "other", "third"]));
    works_for(&gateway, 2).await;
    gateway.assign(of_run(1, port, 3, Order::Run, &[UID, "third"]));
    works_for(&gateway, 3).await;
    assert_eq!(processes(), process, "the same process as before");
    assert!(!pod.has("asked"));
    assert_eq!(client.get("key").await, "value");
    assert_eq!(Client::connect(port).await.get("key").await, "value");
    let noted = std::fs::read_to_string(pod.path().join("started")).unwrap();
    assert_eq!(noted, "3", "an agent that starts again here knows what is lost");

    // A lost store is another run: all stop, and meet anew elsewhere.
    gateway.assign(of_run(4, next, 4, Order::Stop, &[UID, "third"]));
    gateway.until("stopped", |r| r.generation == 4 && r.state == MemberState::Idle).await;
    assert!(pod.has("asked"));
    gateway.assign(of_run(4, next, 4, Order::Run, &[UID, "third"]));
    works_for(&gateway, 4).await;
    assert_eq!(pod.file("started.4").await, format!("1:4 c10d 127.0.0.1:{next} job-uid-4 4"));
    assert_eq!(Client::connect(next).await.get("key").await, "", "it begins empty");
    let closed = async { while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {} };
    timeout(PATIENCE, closed).await.expect("the store of the run before is gone");
    pod.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(pod.ended().await, 1);
}

#[tokio::test]
async fn who_is_left_out_of_the_next_round_stops() {
    let gateway = Gateway::start().await;
    let pod = pod(&gateway);
    let port = free_port();
    gateway.assign(of_run(1, port, 1, Order::Run, &["other", UID]));
    pod.file("started.1").await;
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "the coordinator serves the store");
    gateway.assign(of_run(1, port, 2, Order::Run, &["other"]));
    gateway.until("stopped", |r| r.generation == 2 && r.state == MemberState::Idle).await;
    assert!(pod.has("asked"));
}

#[tokio::test]
async fn scripts_know_the_round_that_their_run_began_with() {
    let gateway = Gateway::start().await;
    let pod = pod(&gateway);
    let port = free_port();
    gateway.assign(of_run(1, port, 1, Order::Run, &["other", UID]));
    pod.file("started.1").await;
    gateway.assign(of_run(1, port, 2, Order::Run, &["other", UID, "third"]));
    works_for(&gateway, 2).await;
    std::fs::write(pod.path().join("drain.1"), "7\n").unwrap();
    let told = gateway.until("a checkpoint", |r| r.checkpoint.is_some()).await.checkpoint.unwrap();
    assert_eq!((told.generation, told.step), (2, 7));
}

#[tokio::test]
async fn a_port_that_is_taken_is_a_failure_like_any_other() {
    let gateway = Gateway::start().await;
    let _pod = pod(&gateway);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    gateway.assign(of_run(1, port, 1, Order::Run, &[UID]));
    let failed = MemberState::Exited { generation: 1, code: 126 };
    gateway.until("it could not start", |r| r.state == failed).await;
    gateway.assign(of_run(2, free_port(), 2, Order::Run, &[UID]));
    works_for(&gateway, 2).await;
}
