//! Runs named cases, several at a time, and prints a line for each.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;

use crate::world::World;
use crate::{Failure, Outcome};

/// A case that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(420);
/// How many run side by side unless `ETO_E2E_AT_ONCE` says otherwise. They mostly wait, for windows and deadlines.
const AT_ONCE: usize = 6;

/// A named case. Each gets a namespace of its own in the shared world.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: fn(Arc<World>) -> BoxFuture<'static, Outcome>,
    /// It disturbs others (or would be disturbed), so nothing runs beside it.
    pub alone: bool,
}

/// `cases![one, two]`: cases from async functions of an `Arc<World>`; the module's path is part of the name.
#[macro_export]
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$($crate::run::Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |world| Box::pin($module::$name(world)),
            alone: false,
        }),*]
    };
}

/// The same cases, each with the cluster to itself.
pub fn alone(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().map(|case| Case { alone: true, ..case }).collect()
}

/// Runs the cases whose name contains one of the words (all, without words): those that get along side by side, then
/// the others one after another. True if all passed.
pub async fn run(cases: Vec<Case>, words: &[String]) -> bool {
    let wanted = |c: &Case| words.is_empty() || words.iter().any(|w| c.name.contains(w.as_str()));
    let cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
    let began = Instant::now();
    let world = match World::start().await {
        Ok(world) => world,
        Err(Failure(why)) => {
            println!("no world to test in: {why}\n0 passed, {} failed", cases.len());
            return false;
        }
    };
    println!("world ready in {:.1} s", began.elapsed().as_secs_f64());
    let at_once = std::env::var("ETO_E2E_AT_ONCE").ok().and_then(|n| n.parse().ok()).unwrap_or(AT_ONCE).max(1);
    let (alone, together): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|c| c.alone);
    let side_by_side = |case: Case| {
        let world = &world;
        async move { (case, one(world, case, case.name).await) }
    };
    let mut results: Vec<(Case, bool)> =
        futures::stream::iter(together).map(side_by_side).buffer_unordered(at_once).collect().await;
    for case in alone {
        results.push((case, one(&world, case, case.name).await));
    }
    // A machine that is busy can make a case miss its time. It gets one more try, by itself, and that is said.
    for (case, passed) in results.iter_mut().filter(|(_, passed)| !passed) {
        *passed = one(&world, *case, &format!("{}_again", case.name)).await;
        println!("{} {} at the second try", if *passed { "FLAKY: passed" } else { "failed" }, case.name);
    }
    drop(world);
    let passed = results.iter().filter(|(_, ok)| *ok).count();
    println!("all in {:.1} s", began.elapsed().as_secs_f64());
    println!("{passed} passed, {} failed", results.len() - passed);
    passed == results.len()
}

/// Runs a case under a name, from which its namespace is made.
async fn one(world: &World, case: Case, name: &str) -> bool {
    let began = Instant::now();
    let world = match world.for_case(name) {
        Ok(world) => Arc::new(world),
        Err(Failure(why)) => {
            println!("FAILED  {name}: {why}");
            return false;
        }
    };
    // In a task of its own: a panic is that case's failure and no more.
    let mut task = tokio::spawn((case.run)(Arc::clone(&world)));
    let outcome = match tokio::time::timeout(LIMIT, &mut task).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure(panic.to_string())),
        Err(_) => {
            task.abort();
            Err(Failure(format!("not done after {LIMIT:?}")))
        }
    };
    let took = began.elapsed().as_secs_f64();
    let mut said = String::new();
    let passed = match outcome {
        Ok(()) => {
            let _ = write!(said, "ok      {name:<56} {took:6.1} s");
            true
        }
        Err(Failure(why)) => {
            let _ = write!(said, "FAILED  {name:<56} {took:6.1} s  {why}\n{}", world.evidence());
            false
        }
    };
    println!("{said}");
    world.end().await;
    passed
}
