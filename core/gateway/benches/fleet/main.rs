//! A fleet of agents against a gateway replica and etcd: what they cost at rest, and how quick rounds are. The agents are
//! the agent's own client; the gateway, etcd and the agents are a process each, so that their memory can be told apart.
//! benches/README.md says how to read what is printed.
//!
//! `cargo bench -p eto-gateway --bench fleet [-- JOBS [AGENTS]]` (1000 8). Each agent takes two open files here and in
//! the gateway: `ulimit -n` has to be a little above twice their number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts processes and reads clocks")]

mod fleet;
mod meter;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use eto_gateway::{Identity, StoreSettings};
use tokio::runtime::Runtime;

use fleet::Fleet;
use meter::{Meter, Spread};
use support::etcd::Etcd;
use support::replica::{Replica, identity};

/// How long the fleet is watched at rest.
const REST: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let runtime = Runtime::new().unwrap();
    if let [first, folder, endpoint] = arguments.as_slice()
        && first == "serve"
    {
        return runtime.block_on(serve(folder, endpoint));
    }
    let number = |at: usize, otherwise: usize| arguments.get(at).map_or(otherwise, |a| a.parse().expect("a number"));
    runtime.block_on(measure(number(0, 1000), number(1, 8)));
}

/// The gateway's process: serves until its standard input ends.
async fn serve(folder: &str, endpoint: &str) {
    let file = |name: &str| Some(format!("{folder}/{name}").into());
    let settings = StoreSettings {
        endpoints: vec![endpoint.to_owned()],
        ca_file: file("ca.pem"),
        cert_file: file("etcd.pem"),
        key_file: file("etcd.key"),
        ..StoreSettings::default()
    };
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let identity =
        Identity { ca_pem: read("gateway-ca.pem"), cert_pem: read("gateway.pem"), key_pem: read("gateway.key") };
    let replica = Replica::start(&settings, &identity).await;
    println!("{}", replica.address());
    let mut rest = String::new();
    while BufReader::new(std::io::stdin()).read_line(&mut rest).is_ok_and(|n| n > 0) {}
}

async fn measure(jobs: usize, agents: usize) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let metrics = format!("http://127.0.0.1:{port}");
    let etcd = Etcd::start_with(1, &["--listen-metrics-urls", &metrics]).await;
    let identity = identity();
    let settings = etcd.settings();
    let folder = settings.ca_file.as_ref().unwrap().parent().unwrap().to_owned();
    for (name, pem) in
        [("gateway-ca.pem", &identity.ca_pem), ("gateway.pem", &identity.cert_pem), ("gateway.key", &identity.key_pem)]
    {
        std::fs::write(folder.join(name), pem).unwrap();
    }
    let mut gateway = Command::new(std::env::current_exe().unwrap())
        .args(["serve", folder.to_str().unwrap(), &settings.endpoints[0]])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(gateway.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let meter = Meter { etcd: etcd.pid(0), gateway: gateway.id(), metrics: port };

    println!("{jobs} jobs x {agents} agents; etcd waits for the disk; load average {}", meter::load());
    let url = format!("https://localhost:{}", address.trim().rsplit(':').next().unwrap());
    let began = meter.look().await;
    let mut fleet = Fleet::join(&settings, &identity, &url, jobs, agents).await;
    let joined = meter.look().await;
    println!("join        {}", joined.since(&began));

    let rounds = fleet.rounds(1, jobs.min(200)).await;
    println!("first round of {} jobs, one at a time", rounds.told.len());
    report(&rounds);
    // The agents' last words of those rounds are written meanwhile.
    tokio::time::sleep(REST / 10).await;
    let before = meter.look().await;
    tokio::time::sleep(REST).await;
    let rest = meter.look().await;
    println!("rest        {}", rest.since(&before));

    for (name, at_once, jobs) in
        [("one at a time", 1, jobs.min(200)), ("50 at once", 50, jobs), ("all at once", jobs, jobs)]
    {
        let before = meter.look().await;
        let rounds = fleet.rounds(at_once, jobs).await;
        println!("rounds of {jobs} jobs, {name}: {}", meter.look().await.since(&before));
        report(&rounds);
    }
    println!("memory      {}", meter.look().await.memory());
    println!("load average {}", meter::load());
    drop(gateway.stdin.take());
    gateway.wait().unwrap();
}

fn report(rounds: &fleet::Rounds) {
    println!("  told      {}   from `assign` to the last of the job's agents", Spread::of(&rounds.told));
    println!("  stopped   {}   from `Stop` to all acknowledgements at the leader", Spread::of(&rounds.stopped));
    println!("  round     {}   from `Stop` to the last agent told `Run`", Spread::of(&rounds.whole));
}
