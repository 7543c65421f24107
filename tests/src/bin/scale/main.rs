//! How long it takes until the sizes of many jobs follow a step of their metric, and what that costs, on a real control
//! plane: the operator with a period of 1 s, a bare loop (`floor`) and the operator with its default period, one after the
//! other on the same objects. `benches/README.md` says how to read it.
//!
//! `scale [JOBS...]` (1000 5000). `ETO_E2E_OPERATOR` and `ETO_SCALE_FLOOR` name the programs; they should be built as
//! optimised as each other.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: a program of the measurements")]

mod follow;
mod jobs;
mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use eto_api::ElasticJob;
use eto_e2e::cluster::Cluster;
use eto_e2e::operator::{Operator, Setup};
use eto_e2e::prometheus::Prometheus;
use eto_e2e::world::{install_crd, policies};
use eto_e2e::{Failure, Outcome, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::follow::{Field, Follow};
use crate::jobs::{HIGH, LOW, Load, NAMESPACE};
use crate::usage::{Usage, load, memory};

/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// A source of signals has to be back for this long before a shrink.
const WINDOW: Duration = Duration::from_secs(62);

#[tokio::main]
async fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1000, 5000];
    }
    sizes.sort_unstable();
    if let Err(Failure(why)) = run(&sizes).await {
        eprintln!("scale: {why}");
        std::process::exit(1);
    }
}

async fn run(sizes: &[usize]) -> Outcome {
    let world = World::start().await?;
    let mut made = 0;
    for &count in sizes {
        let began = Instant::now();
        jobs::create(&world.api, made, count).await?;
        world.load.jobs(count);
        println!("\n{count} jobs; {} made in {:.1} s (load {})", count - made, began.elapsed().as_secs_f64(), load());
        made = count;
        let steps = if count > 2000 { 2 } else { 4 };
        let fast = world.operator(count, "1s", steps).await?;
        let bare = world.floor(count, steps).await?;
        let ratio = |at: fn(&Lags) -> f64| at(&fast) / at(&bare);
        println!(
            "{count} jobs, operator (1 s) over floor: p50 {:.2}, p95 {:.2}, p100 {:.2}",
            ratio(|l| l.p50),
            ratio(|l| l.p95),
            ratio(|l| l.p100)
        );
        world.operator(count, "15s", 2).await?;
    }
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default()).await?.items.len();
    ensure!(pods == 0, "there are {pods} pods: jobs without a template must have none");
    Ok(())
}

/// Lags of one step, or the middle ones of several, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Lags {
    /// The first job's: scrape, period, query. What comes after is writing.
    first: f64,
    p50: f64,
    p95: f64,
    p100: f64,
}

impl Lags {
    fn of(sorted: &[Duration]) -> Lags {
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1));
        let seconds = |percent| at(percent).map_or(f64::NAN, Duration::as_secs_f64);
        Lags { first: seconds(0), p50: seconds(50), p95: seconds(95), p100: seconds(100) }
    }

    /// The lower median of each figure.
    fn middle(steps: &[Lags]) -> Lags {
        let of = |f: fn(&Lags) -> f64| {
            let mut all: Vec<f64> = steps.iter().map(f).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
        };
        Lags { first: of(|l| l.first), p50: of(|l| l.p50), p95: of(|l| l.p95), p100: of(|l| l.p100) }
    }
}

impl std::fmt::Display for Lags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} / {:.2} / {:.2} / {:.2} s", self.first, self.p50, self.p95, self.p100)
    }
}

struct World {
    cluster: Cluster,
    client: Client,
    api: Api<ElasticJob>,
    load: Load,
    prometheus: Prometheus,
    follow: Follow,
    directory: TempDir,
}

impl World {
    async fn start() -> Outcome<World> {
        let policy = policies().join("hpa.wasm");
        ensure!(policy.exists(), "there is no {}: make policies", policy.display());
        let cluster = Cluster::start(0)?;
        let client = cluster.client().await?;
        install_crd(&client).await?;
        let meta = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &Namespace { metadata: meta, ..Namespace::default() }).await?;
        let load = Load::start().await?;
        let prometheus = Prometheus::start(load.address).await?;
        let follow = Follow::start(client.clone());
        let api = Api::namespaced(client.clone(), NAMESPACE);
        Ok(World { cluster, client, api, load, prometheus, follow, directory: TempDir::new()? })
    }

    /// Measures the operator with that period: at rest, then in steps.
    async fn operator(&self, count: usize, period: &str, steps: u32) -> Outcome<Lags> {
        let settings: BTreeMap<String, String> =
            [("ETO_EVALUATION_PERIOD", period), ("ETO_LEADER_NAMESPACE", "default"), ("ETO_LOG_LEVEL", "info")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
        let mut operator = Operator::start(&Setup {
            kubeconfig: self.cluster.kubeconfig.clone(),
            prometheus: self.prometheus.url(),
            policies: policies(),
            directory: self.directory.path().into(),
            settings,
        })
        .await?;
        let ready = Instant::now();
        self.follow.reach(Field::Target, LOW, count, PATIENCE, || {}).await?;
        let before = self.quiet(&operator).await?;
        tokio::time::sleep(WINDOW.saturating_sub(ready.elapsed()).max(Duration::from_secs(31))).await;
        let rest = Usage::read(&self.cluster, operator.id(), Some(&operator)).await?.since(&before);
        let (resident, peak) = memory(operator.id())?;
        println!(
            "{count} jobs, operator {period}, at rest: {} evaluations, {} requests by the operator, {} by anybody; \
             CPU s per 1,000 evaluations: {}; memory {resident:.0} MiB, peak {peak:.0} (load {})",
            rest.evaluations,
            rest.sent,
            rest.requests(),
            rest.cpu_each(rest.evaluations / 1000.0),
            load()
        );
        let what = format!("operator {period}");
        let lags = self.steps(count, &what, Field::Target, steps, operator.id(), Some(&operator)).await?;
        println!("{count} jobs, operator {period}, peak of memory {:.0} MiB", memory(operator.id())?.1);
        operator.stop().await?;
        Ok(lags)
    }

    /// Waits until the operator has written what there is to write of jobs that it sees for the first time: no request in
    /// a whole period.
    async fn quiet(&self, operator: &Operator) -> Outcome<Usage> {
        let began = Instant::now();
        let mut last = Usage::read(&self.cluster, operator.id(), Some(operator)).await?;
        while began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_secs(16)).await;
            let now = Usage::read(&self.cluster, operator.id(), Some(operator)).await?;
            if now.since(&last).sent < 1.0 {
                return Ok(now);
            }
            last = now;
        }
        Err(Failure(format!("the operator still sends requests after {PATIENCE:?}")))
    }

    /// Measures the floor in steps.
    async fn floor(&self, count: usize, steps: u32) -> Outcome<Lags> {
        let mut command = tokio::process::Command::new(floor()?);
        command.arg(self.prometheus.address.to_string()).arg(NAMESPACE).env("KUBECONFIG", &self.cluster.kubeconfig);
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let ready = BufReader::new(output).lines().next_line().await?;
        ensure!(ready.as_deref() == Some("ready"), "the floor did not start");
        let id = process.id().ok_or("the floor has ended")?;
        let lags = self.steps(count, "floor", Field::Replicas, steps, id, None).await?;
        process.kill().await?;
        Ok(lags)
    }

    /// Steps of all jobs' load between half and twice of what 8 workers are right for.
    async fn steps(
        &self,
        count: usize,
        what: &str,
        field: Field,
        steps: u32,
        program: u32,
        operator: Option<&Operator>,
    ) -> Outcome<Lags> {
        let mut all = Vec::new();
        for step in 0..steps {
            let size = if step % 2 == 0 { HIGH } else { LOW };
            // Not at the same moment of the period each time.
            tokio::time::sleep(Duration::from_millis(2300 * u64::from(step + 1))).await;
            let before = Usage::read(&self.cluster, program, operator).await?;
            let lags = self.follow.reach(field, size, count, PATIENCE, || self.load.ask_for(size)).await?;
            // What is still to be written because of it, events above all.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let used = Usage::read(&self.cluster, program, operator).await?.since(&before);
            let lags = Lags::of(&lags);
            #[allow(clippy::cast_precision_loss)]
            let decisions = count as f64;
            let sent =
                operator.map(|_| format!("{:.2} requests a decision, ", used.sent / decisions)).unwrap_or_default();
            println!(
                "{count} jobs, {what}, step to {size}: first / p50 / p95 / p100 {lags}; {sent}by anybody: {}; \
                 CPU s per 1,000 decisions: {} (load {})",
                used.requests(),
                used.cpu_each(decisions / 1000.0),
                load()
            );
            all.push(lags);
        }
        let middle = Lags::middle(&all);
        println!("{count} jobs, {what}: first / p50 / p95 / p100 {middle} (median of {steps} steps)");
        Ok(middle)
    }
}

/// `ETO_SCALE_FLOOR`, or the program that Cargo put beside this one.
fn floor() -> Outcome<PathBuf> {
    if let Ok(path) = std::env::var("ETO_SCALE_FLOOR") {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    own.parent().map(|p| p.join("floor")).filter(|p| p.exists()).ok_or_else(|| {
        Failure("the floor is not built: cargo build -p eto-e2e --bin floor, or set ETO_SCALE_FLOOR".into())
    })
}
