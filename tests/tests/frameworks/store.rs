//! The store of `eto-rendezvous` under torch's own client, process groups and `torchrun`.

use std::process::{Command, Output, Stdio};

use eto_rendezvous::{Limits, Server};

use crate::job::Framework;

/// A store, served for as long as this lives.
struct Served {
    port: u16,
    _runtime: tokio::runtime::Runtime,
}

fn serve() -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind("127.0.0.1:0".parse().unwrap(), Limits::default())).unwrap();
    let port = server.address().unwrap().port();
    runtime.spawn(server.serve());
    Served { port, _runtime: runtime }
}

fn python() -> Command {
    let mut command = Command::new(Framework::Torch.python());
    command.env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn told(outputs: &[Output]) -> String {
    let one = |o: &Output| {
        let (out, err) = (String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
        assert!(o.status.success(), "{}:\n{out}\n{err}", o.status);
        out.into_owned()
    };
    outputs.iter().map(one).collect()
}

const EVERY_OPERATION: &str = r#"
import sys
from datetime import timedelta
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=90))
store.set("a", "1")
assert store.get("a") == b"1"
assert (store.add("n", 5), store.add("n", -2), store.get("n")) == (5, 3, b"3")
assert store.compare_set("c", "", "x") == b"x"
assert store.compare_set("c", "y", "z") == b"x"
assert store.compare_set("c", "x", "z") == b"z"
assert store.compare_set("absent", "y", "z") == b"y"
assert store.check(["a", "c"]) and not store.check(["a", "absent"])
store.wait(["a", "c"])
try:
    store.wait(["never"], timedelta(milliseconds=300))
    sys.exit("waiting for a key that never comes ended without an error")
except dist.DistStoreError:
    pass
assert store.get("a") == b"1", "the connection is in step after a cancelled wait"
before = store.num_keys()
assert store.delete_key("a") and not store.delete_key("a")
assert store.num_keys() == before - 1
store.append("p", "x")
store.append("p", "y")
assert store.get("p") == b"xy"
store.multi_set(["m1", "m2"], ["1", "22"])
assert store.multi_get(["m1", "m2"]) == [b"1", b"22"]
store.set("big", "x" * 3_000_000)
assert len(store.get("big")) == 3_000_000
print("every operation")
"#;

#[test]
fn torchs_client_finds_every_operation() {
    let store = serve();
    let out = python().args(["-c", EVERY_OPERATION, &store.port.to_string()]).output().unwrap();
    assert_eq!(told(&[out]).trim(), "every operation");
}

const SUM: &str = r#"
import os
import torch, torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", x.item(), flush=True)
dist.barrier()
"#;

/// Two agents of `torchrun` meet at the store, which none of them serves.
#[test]
fn torchrun_meets_at_the_store() {
    let store = serve();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sum.py");
    std::fs::write(&script, SUM).unwrap();
    let agents: Vec<_> = (0..2)
        .map(|_| {
            python()
                .args(["-m", "torch.distributed.run"])
                .arg(&script)
                .envs([
                    ("PET_NNODES", "2"),
                    ("PET_NPROC_PER_NODE", "1"),
                    ("PET_RDZV_BACKEND", "c10d"),
                    ("PET_RDZV_ENDPOINT", &format!("127.0.0.1:{}", store.port)),
                    ("PET_RDZV_ID", "uid-g1"),
                    ("PET_RDZV_CONF", "is_host=false,last_call_timeout=2"),
                    ("PET_LOCAL_ADDR", "127.0.0.1"),
                    ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
                ])
                .spawn()
                .unwrap()
        })
        .collect();
    let outputs: Vec<Output> = agents.into_iter().map(|agent| agent.wait_with_output().unwrap()).collect();
    let all = told(&outputs);
    for rank in 0..2 {
        assert!(all.contains(&format!("rank {rank} of 2 sum 3.0")), "{all}");
    }
}
