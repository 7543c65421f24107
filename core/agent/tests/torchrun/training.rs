//! A training of a few pods on this machine, each with an agent and an address of its own.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eto_membership::{Assignment, FrameworkKind, Member, Native, Order, ReplicaTypes, Report, Round};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::gateway::Gateway;
use crate::pod::{self, children, descendants};

/// Far more than a phase takes on a busy machine (one import of torch may take a minute); only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(400);

/// Each step all members must be there for; rank 0 keeps the step, and notes the run and the world that made it.
const TRAIN: &str = r#"
import os, time
from datetime import timedelta
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
kept = os.path.join(os.environ["SHARED"], "step")
start = torch.tensor([int(open(kept).read()) if rank == 0 and os.path.exists(kept) else 0])
dist.broadcast(start, 0)
step = start.item()
while True:
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == world
    step += 1
    if rank == 0:
        with open(os.path.join(os.environ["SHARED"], "log"), "a") as file:
            file.write("%s %d %d\n" % (os.environ["ETO_ROUND"], world, step))
        with open(kept + ".new", "w") as file:
            file.write(str(step))
        os.replace(kept + ".new", kept)
    time.sleep(0.05)
"#;

/// A line of the log: run, world, step.
type Line = (u64, u32, u64);

pub(crate) struct Training {
    gateway: Gateway,
    shared: TempDir,
    pods: BTreeMap<String, pod::Pod>,
    addresses: BTreeMap<String, String>,
    /// Of the store, by run.
    ports: BTreeMap<u64, u16>,
    /// Lines of the log that were looked at.
    seen: usize,
    /// Of each pod.
    processes: u32,
    /// What the templates of pods say beside.
    env: Vec<(String, String)>,
}

impl Training {
    /// None yet, of pods with so many processes each.
    pub(crate) async fn start(processes: u32) -> Training {
        let shared = tempfile::tempdir().unwrap();
        std::fs::write(shared.path().join("train.py"), TRAIN).unwrap();
        let gateway = Gateway::start().await;
        let (pods, addresses, ports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Training { gateway, shared, pods, addresses, ports, seen: 0, processes, env: Vec::new() }
    }

    /// The pods to come have this variable in their template.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// A pod with an agent that waits for its round.
    pub(crate) fn add(&mut self, name: &str) {
        let address = format!("127.0.0.{}", 10 + self.addresses.len());
        let all = std::env::var("ETO_TRAINING").expect("ETO_TRAINING: run tests/frameworks.sh");
        let python = Path::new(&all).join("torch/bin/python").display().to_string();
        let script = self.path("train.py").display().to_string();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "first\n").unwrap();
        let shared = self.shared.path().display().to_string();
        let mut env = vec![
            ("ETO_POD_UID", name),
            ("ETO_POD_IP", address.as_str()),
            ("SHARED", shared.as_str()),
            ("OMP_NUM_THREADS", "1"),
            ("GLOO_SOCKET_IFNAME", "lo"),
        ];
        env.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let command = [python.as_str(), "-m", "torch.distributed.run", script.as_str()];
        self.pods.insert(name.to_owned(), pod::Pod::again(folder, &self.gateway, &command, &env));
        self.addresses.insert(name.to_owned(), address);
    }

    /// Waits until all of these agents are there.
    pub(crate) async fn joined(&self, names: &[&str]) {
        for name in names {
            self.until(name, LIMIT, |_| true).await;
        }
    }

    /// Waits for what the newest report of this pod is to say.
    pub(crate) async fn until(&self, name: &str, limit: Duration, wanted: impl Fn(&Report) -> bool) {
        let address = &self.addresses[name];
        let newest = || self.gateway.reports().into_iter().rev().find(|r| r.address == *address);
        let look = async {
            while !newest().is_some_and(|r| wanted(&r)) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(limit, look).await.unwrap_or_else(|_| panic!("{name}: {:?}", newest()));
    }

    /// Publishes a round of a run. The first of these pods serves the store.
    pub(crate) fn order(&mut self, run: u64, generation: u64, order: Order, names: &[&str]) {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port = *self.ports.entry(run).or_insert_with(free);
        let member = |(index, name): (u32, &&str)| Member {
            index,
            address: self.addresses[*name].clone(),
            uid: Some((*name).to_owned()),
            processes: self.processes,
        };
        let members = (0u32..).zip(names).map(member).collect();
        let id = format!("job-uid-{generation}");
        let round = Round {
            job: "team/job".to_owned(),
            generation,
            id,
            members,
            coordinator: 0,
            port,
            types: ReplicaTypes::default(),
        };
        let native = Some(Native { run, min: 1, max: 3, alone: false });
        self.gateway.assign(Assignment { native, ..Assignment::new(round, order, FrameworkKind::PyTorch, 60_000) });
    }

    fn log(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let mut next = || words.next()?.parse::<u64>().ok();
            Some((next()?, u32::try_from(next()?).ok()?, next()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// Waits until steps are made in a world of so many processes, by this run.
    pub(crate) async fn world(&mut self, run: u64, size: u32) {
        assert!(self.comes(run, size, LIMIT).await, "no world of {size}: {:?}", self.log().last());
    }

    /// Whether there is such a world in time.
    pub(crate) async fn comes(&mut self, run: u64, size: u32, limit: Duration) -> bool {
        let seen = self.seen;
        let new = || self.log().into_iter().skip(seen).filter(|(of, world, _)| (*of, *world) == (run, size)).count();
        let look = async {
            while new() < 3 {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let came = timeout(limit, look).await.is_ok();
        self.seen = self.log().len();
        came
    }

    /// The process that a pod's agent has started.
    pub(crate) fn torchrun(&self, name: &str) -> i32 {
        children(self.pods[name].pid().as_raw()).first().expect("it runs").0
    }

    /// Everything in a pod is gone at once.
    pub(crate) fn kill(&mut self, name: &str) {
        let pod = self.pods.remove(name).expect("a pod");
        let started = descendants(pod.pid().as_raw());
        pod.signal(Signal::SIGKILL);
        for pid in started {
            // What ended with the agent is gone already.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// No step is left out, and only the one that was not kept yet is done again.
    pub(crate) fn check_steps(&self) {
        let steps: Vec<u64> = self.log().into_iter().map(|(_, _, step)| step).collect();
        assert!(steps.windows(2).all(|w| w[1] == w[0] + 1 || w[1] == w[0]), "{steps:?}");
    }
}
