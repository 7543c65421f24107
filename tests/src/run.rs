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
    let mut results: Vec<bool> =
        futures::stream::iter(together).map(|case| one(&world, case)).buffer_unordered(at_once).collect().await;
    for case in alone {
        results.push(one(&world, case).await);
    }
    drop(world);
    let passed = results.iter().filter(|ok| **ok).count();
    println!("all in {:.1} s", began.elapsed().as_secs_f64());
    println!("{passed} passed, {} failed", results.len() - passed);
    passed == results.len()
}

async fn one(world: &World, case: Case) -> bool {
    let began = Instant::now();
    let world = match world.for_case(case.name) {
        Ok(world) => Arc::new(world),
        Err(Failure(why)) => {
            println!("FAILED  {}: {why}", case.name);
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
            let _ = write!(said, "ok      {:<56} {took:6.1} s", case.name);
            true
        }
        Err(Failure(why)) => {
            let _ = write!(said, "FAILED  {:<56} {took:6.1} s  {why}\n{}", case.name, world.evidence());
            false
        }
    };
    println!("{said}");
    world.end().await;
    passed
}
