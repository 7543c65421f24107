//! Runs stories of the simulation: one seed with its trace, or many over all cores.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "adapter: tells the time that runs take and prints"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use eto_sim::{Counts, Outcome, Point, Rule, run, run_at, sweep};

/// Simulates jobs, agents, gateway and operator in virtual time, with faults from a seed.
#[derive(Debug, Parser)]
#[command(name = "eto-sim", version)]
struct Args {
    /// The seed to run, or the first of them.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds to run.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Let each fault strike before each step of each transaction of these seeds, in turn, and not at random.
    #[arg(long, conflicts_with = "point")]
    sweep: bool,
    /// The one place of a sweep to run, as TRANSACTION/FAULT/STEP.
    #[arg(long, conflicts_with = "runs")]
    point: Option<Point>,
    /// Print all that happened, and not only the end of what went wrong.
    #[arg(long)]
    trace: bool,
    /// Threads; 0 = one for each core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

/// Events that are printed of a seed that broke a rule.
const LAST: usize = 60;
/// Seeds that are printed in full.
const SHOWN: usize = 5;
/// Seeds that are named of each rule that was broken.
const NAMED: usize = 20;

fn main() -> ExitCode {
    let args = Args::parse();
    let begun = Instant::now();
    let mut out = std::io::stdout().lock();
    if args.point.is_some() || (args.trace && args.runs == 1 && !args.sweep) {
        let kept = if args.trace { usize::MAX } else { LAST };
        let Some(outcome) = again(args.seed, args.point, kept) else {
            return fail("the transaction has fewer steps with this seed, or does not take place");
        };
        let told = tell(&mut out, &outcome);
        return if told.is_ok() && outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let outcomes = run_all(&args);
    let seconds = begun.elapsed().as_secs_f64();
    match summarise(&mut out, &args, &outcomes, seconds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn fail(why: &str) -> ExitCode {
    _ = writeln!(std::io::stderr(), "eto-sim: {why}");
    ExitCode::FAILURE
}

fn again(seed: u64, point: Option<Point>, kept: usize) -> Option<Outcome> {
    match point {
        Some(point) => run_at(seed, point, kept),
        None => Some(run(seed, kept)),
    }
}

/// What all stories came to: the sums, and those that broke a rule.
#[derive(Default)]
struct Sums {
    stories: u64,
    counts: Counts,
    broken: BTreeMap<(u64, Option<Point>), Outcome>,
}

fn run_all(args: &Args) -> Sums {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads == 0 { cores } else { args.threads };
    let next = AtomicU64::new(0);
    let firsts: Vec<Point> = if args.sweep { Point::firsts().collect() } else { Vec::new() };
    let each = u64::try_from(firsts.len()).unwrap_or(0).max(1);
    let one = || {
        let mut sums = Sums::default();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= args.runs.saturating_mul(each) {
                return sums;
            }
            let seed = args.seed.wrapping_add(n / each);
            match usize::try_from(n % each).ok().and_then(|i| firsts.get(i)) {
                Some(first) => sweep(seed, *first).for_each(|outcome| sums.take(outcome)),
                None => sums.take(run(seed, 0)),
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let mut all = Sums::default();
        for worker in workers {
            match worker.join() {
                Ok(sums) => all.add(sums),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

impl Sums {
    fn take(&mut self, outcome: Outcome) {
        self.stories += 1;
        self.count(&outcome.counts);
        if outcome.violation.is_some() {
            self.broken.insert((outcome.seed, outcome.point), outcome);
        }
    }

    fn add(&mut self, other: Sums) {
        self.stories += other.stories;
        self.count(&other.counts);
        self.broken.extend(other.broken);
    }

    fn count(&mut self, more: &Counts) {
        let all = &mut self.counts;
        all.events += more.events;
        all.faults += more.faults;
        all.plans += more.plans;
        all.kills += more.kills;
        all.rounds += more.rounds;
        all.steps += more.steps;
        all.virtual_ms += more.virtual_ms;
    }
}

/// True if no rule was broken.
fn summarise(out: &mut impl Write, args: &Args, sums: &Sums, seconds: f64) -> std::io::Result<bool> {
    for (seed, point) in sums.broken.keys().take(SHOWN) {
        let kept = if args.trace { usize::MAX } else { LAST };
        if let Some(outcome) = again(*seed, *point, kept) {
            tell(out, &outcome)?;
        }
    }
    let mut rules: BTreeMap<Rule, Vec<String>> = BTreeMap::new();
    for ((seed, point), outcome) in &sums.broken {
        let name = point.map_or_else(|| seed.to_string(), |p| format!("{seed}:{p}"));
        let rule = outcome.violation.iter().map(|v| v.rule);
        rule.for_each(|rule| rules.entry(rule).or_default().push(name.clone()));
    }
    let all = &sums.counts;
    let hours = all.virtual_ms / 3_600_000;
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = sums.stories as f64 / seconds.max(0.001);
    let what = if args.sweep { format!("stories of {} seed(s)", args.runs) } else { "seeds".to_owned() };
    writeln!(
        out,
        "{} {what} in {seconds:.1} s ({rate:.1}/s): {hours} virtual hours, {} events, {} faults, {} operator kills, \
         {} plans, {} rounds, {} training steps",
        sums.stories, all.events, all.faults, all.kills, all.plans, all.rounds, all.steps
    )?;
    writeln!(out, "violations: {}", sums.broken.len())?;
    for (rule, seeds) in &rules {
        let first: Vec<_> = seeds.iter().take(NAMED).map(String::as_str).collect();
        writeln!(out, "  {rule:?}: {}, seeds {}", seeds.len(), first.join(" "))?;
    }
    Ok(sums.broken.is_empty())
}

fn tell(out: &mut impl Write, outcome: &Outcome) -> std::io::Result<()> {
    for line in &outcome.trace {
        writeln!(out, "{line}")?;
    }
    match &outcome.violation {
        Some(violation) => {
            writeln!(out, "seed {}: {violation}", outcome.seed)?;
            writeln!(out, "replay: {}\n", outcome.replay())
        }
        None => writeln!(out, "seed {}: no rule was broken; {:?}", outcome.seed, outcome.counts),
    }
}
