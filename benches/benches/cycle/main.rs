//! The evaluation cycle of 1,000 and of 10,000 jobs with 8 workers each: Prometheus' answers are fetched and read, then each
//! job goes through view, policy (the shipped `hpa`, as WebAssembly), guard and plan. How to read it: README.md.
//!
//! Each size runs in a process of its own, so that its peak of memory is its own, and the server of the answers in another.
//! What is counted is CPU time, not wall-clock time: other work on the machine does not change it much.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods, clippy::disallowed_types)]

mod cpu;
mod jobs;
mod server;
mod stages;

use std::process::Command;

use serde::{Deserialize, Serialize};

/// Sizes, and how often each is cycled through.
const SIZES: [(usize, u32); 2] = [(1_000, 40), (10_000, 6)];
/// Runs of each size, in turn; the median counts.
const ROUNDS: usize = 3;
/// The period that a cycle has, in seconds.
const PERIOD: f64 = 15.0;

/// CPU time of one cycle by part, in milliseconds, and the peak of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Cost {
    jobs: f64,
    cycle: f64,
    wall: f64,
    collect: f64,
    gather: f64,
    view: f64,
    policy: f64,
    decide: f64,
    plan: f64,
    peak_mib: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |at: usize| arguments.get(at).and_then(|a| a.parse::<usize>().ok()).expect("a number");
    match arguments.first().map(String::as_str) {
        Some("serve") => server::serve(number(1)),
        Some("measure") => {
            let cost = stages::measure(number(1), u32::try_from(number(2)).expect("few cycles"));
            println!("{}", serde_json::to_string(&cost).expect("plain numbers"));
        }
        _ => compare(),
    }
}

fn compare() {
    let mut runs: Vec<Vec<Cost>> = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for ((jobs, cycles), runs) in SIZES.iter().zip(&mut runs) {
            let mut child = Command::new(std::env::current_exe().expect("the path of this program"));
            let output = child.args(["measure", &jobs.to_string(), &cycles.to_string()]).output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            runs.push(serde_json::from_slice(&output.stdout).expect("its figures"));
        }
    }
    let costs: Vec<Cost> = runs.iter().map(|r| middle(r)).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("evaluation cycle, 8 workers a job, CPU time (load average {})", load.split(' ').next().unwrap_or("?"));
    println!(
        "{:>7} {:>10} {:>9} {:>10} {:>9}   microseconds a job, by part",
        "jobs", "ms/cycle", "us/job", "% of core", "peak MiB"
    );
    for c in &costs {
        let each = |ms: f64| ms * 1000.0 / c.jobs;
        let guard = (c.decide - c.view - c.policy).max(0.0);
        println!(
            "{:>7} {:>10.1} {:>9.1} {:>9.1}% {:>9.0}   fetch and read {:.1}, wants {:.1}, view {:.1}, policy {:.1}, guard {:.1}, plan {:.1}",
            c.jobs,
            c.cycle,
            each(c.cycle),
            c.cycle / 1000.0 / PERIOD * 100.0,
            c.peak_mib,
            each(c.gather),
            each(c.collect),
            each(c.view),
            each(c.policy),
            each(guard),
            each(c.plan),
        );
    }
    if let [small, large] = costs.as_slice() {
        let ratio = (large.cycle / large.jobs) / (small.cycle / small.jobs);
        println!("cost per job at {} over that at {}: {ratio:.2} (flat: 0.80 to 1.20)", large.jobs, small.jobs);
    }
}

/// The run with the median cost.
fn middle(runs: &[Cost]) -> Cost {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.cycle.total_cmp(&b.cycle));
    runs.get(runs.len() / 2).cloned().unwrap_or_default()
}
