//! Runs cycles, whole and in parts, and says what they cost.

use std::hint::black_box;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_cycle::evaluate::{self, Facts};
use eto_cycle::wants::{WantsCache, questioned};
use eto_engine::contract::{Capacity, NONE};
use eto_engine::plan::{self, PlanFacts};
use eto_engine::signals::SignalSet;
use eto_engine::time::Time;
use eto_engine::view::{self, View};
use eto_policy_host::{Change, HostSettings, ModuleSettings, PolicyHost, Registry, Snapshot};
use eto_signals::{Prometheus, PrometheusSettings, Wants};
use tokio::runtime::Runtime;

use crate::jobs::{self, Job, START, WORKERS};
use crate::{Cost, cpu};

const ANY_ROOM: Capacity = Capacity { fits: NONE, pending: 0 };

struct World {
    jobs: Vec<Job>,
    policies: Arc<Snapshot>,
    wants: WantsCache,
    source: Prometheus,
    runtime: Runtime,
    /// Cycles so far.
    cycles: u64,
}

/// The cost of a cycle: the mean of this many.
pub(crate) fn measure(count: usize, cycles: u32) -> Cost {
    let server = Server::start(count);
    let mut world = World::new(count, server.port);
    // Two cycles to warm up; they also show that what is measured works.
    let moved = world.cycle() + world.cycle();
    assert_eq!(moved, 0, "the jobs are at rest");
    world.check();
    let mean = |run: &mut dyn FnMut()| {
        let before = cpu::milliseconds();
        (0..cycles).for_each(|_| run());
        (cpu::milliseconds() - before) / f64::from(cycles)
    };
    let began = Instant::now();
    let cycle = mean(&mut || {
        world.cycle();
    });
    let wall = began.elapsed().as_secs_f64() * 1000.0 / f64::from(cycles);
    let peak_mib = cpu::peak_mib();

    let collect = mean(&mut || drop(black_box(world.collect())));
    let wanted = world.collect();
    let gather = mean(&mut || drop(black_box(world.gather(&wanted))));
    let signals = world.gather(&wanted);
    let view = mean(&mut || world.jobs.iter().for_each(|job| drop(black_box(world.view(job, &signals)))));
    let views: Vec<View> = world.jobs.iter().map(|job| world.view(job, &signals)).collect();
    let asked = world.policies.scaling("hpa").expect("served");
    let policy =
        mean(&mut || views.iter().for_each(|v| drop(black_box(asked.evaluate(&v.input).expect("it answers")))));
    let decide = mean(&mut || {
        world.decide(&signals);
    });
    let plan = mean(&mut || world.plan());
    #[allow(clippy::cast_precision_loss)]
    let jobs = count as f64;
    Cost { jobs, cycle, wall, collect, gather, view, policy, decide, plan, peak_mib }
}

impl World {
    fn new(count: usize, port: u16) -> World {
        let dir = std::env::var_os("ETO_POLICIES_OUT").map(PathBuf::from);
        let dir = dir.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/policies")));
        let module = std::fs::read(dir.join("hpa.wasm")).expect("run `make policies` first");
        let host = PolicyHost::new(HostSettings::default()).expect("the engine starts");
        let policy = host.load("hpa", module, &ModuleSettings::default()).expect("the shipped policy is served");
        let url = format!("http://127.0.0.1:{port}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(1)
            // CPU time of a thread that has ended would not be counted.
            .thread_keep_alive(Duration::from_secs(3600))
            .build()
            .expect("a runtime");
        World {
            jobs: jobs::all(count),
            policies: Registry::new().publish(vec![Change::Serve(policy)]),
            wants: WantsCache::default(),
            source: Prometheus::new(PrometheusSettings { url, ..PrometheusSettings::default() })
                .expect("good settings"),
            runtime,
            cycles: 0,
        }
    }

    fn now(&self) -> Time {
        START.plus(Duration::from_secs(15) * u32::try_from(self.cycles).expect("few cycles"))
    }

    /// One whole cycle. Gives how many targets moved.
    fn cycle(&mut self) -> usize {
        self.cycles += 1;
        let signals = self.gather(&self.collect());
        let moved = self.decide(&signals);
        self.plan();
        moved
    }

    fn collect(&self) -> Wants {
        let jobs = || self.jobs.iter().map(|j| &j.spec);
        let wants = self.wants.collect(jobs(), &self.policies, self.now());
        let namespaces = questioned(&wants);
        let of_these = jobs().filter(|j| namespaces.contains(j.key.namespace.as_str()));
        black_box(self.wants.claims(of_these, &self.policies, self.now()));
        wants
    }

    fn gather(&self, wants: &Wants) -> SignalSet {
        self.runtime.block_on(self.source.gather(wants, self.now()))
    }

    fn view(&self, job: &Job, signals: &SignalSet) -> View {
        let (now, capacity, wants) = (self.now(), ANY_ROOM, [].as_slice());
        let Job { spec, state, memory, pods } = job;
        view::build(&view::Facts { job: spec, state, memory, pods, signals, wants, capacity, now })
    }

    fn decide(&mut self, signals: &SignalSet) -> usize {
        let (now, policies, wants) = (self.now(), &*self.policies, &self.wants);
        let moved = self.jobs.iter_mut().filter_map(|job| {
            let Job { spec, state, memory, pods } = job;
            let before = memory.last.take();
            let facts = Facts { job: spec, state, pods, signals, capacity: ANY_ROOM, policies, now };
            let decision = evaluate::evaluate(&facts, wants, memory).decision;
            evaluate::settle(spec, state, memory, &decision, before.as_ref(), now).moved.then_some(())
        });
        moved.count()
    }

    /// Plans for every job, though an operator plans only where something has changed.
    fn plan(&mut self) {
        let now = self.now();
        for job in &mut self.jobs {
            let plan = plan::plan(&job.spec, &job.state, &job.pods, &PlanFacts::default(), now);
            assert!(plan.actions.is_empty(), "there is nothing to do: {:?}", plan.actions);
            job.state = plan.state;
        }
    }

    /// Every decision was made by the policy from all samples.
    fn check(&self) {
        let mut limited = 0;
        for job in &self.jobs {
            let last = job.memory.last.as_ref().expect("a decision");
            assert!(last.answered && last.failure.is_none() && last.fuel > 0, "{last:?}");
            let coverage = last.signals.first().map_or(0.0, |s| s.coverage);
            assert!((coverage - 1.0).abs() < f64::EPSILON, "{last:?}");
            limited += usize::from(!last.limits.is_empty());
        }
        assert_eq!(limited, self.jobs.len() / 100, "one job of a hundred asks for more than it may have");
        assert!(self.jobs.iter().all(|j| j.pods.len() == WORKERS));
    }
}

/// The server of the answers, in a process of its own; ends when dropped.
struct Server {
    port: u16,
    process: Child,
}

impl Server {
    fn start(count: usize) -> Server {
        let mut process = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["serve", &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("piped");
        std::io::BufReader::new(output).read_line(&mut line).expect("its port");
        Server { port: line.trim().parse().expect("a port"), process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
