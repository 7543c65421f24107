//! Runs named cases one after another and prints a line for each.

use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;

use crate::world::World;
use crate::{Failure, Outcome};

/// A named case. Each gets a namespace of its own in the shared world.
pub struct Case {
    pub name: &'static str,
    pub run: fn(Arc<World>) -> BoxFuture<'static, Outcome>,
}

/// `cases![one, two]`: cases from async functions of an `Arc<World>`; the module's path is part of the name.
#[macro_export]
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$($crate::run::Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |world| Box::pin($module::$name(world)),
        }),*]
    };
}

/// Runs the cases whose name contains one of the words (all, without words). True if all passed.
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
    let (mut passed, mut failed) = (0, 0);
    for case in cases {
        let began = Instant::now();
        let world = Arc::new(world.for_case(case.name));
        // In a task of its own: a panic is that case's failure and no more.
        let outcome = match tokio::spawn((case.run)(Arc::clone(&world))).await {
            Ok(outcome) => outcome,
            Err(panic) => Err(Failure(panic.to_string())),
        };
        let took = began.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("ok      {:<40} {took:6.1} s", case.name);
            }
            Err(Failure(why)) => {
                failed += 1;
                println!("FAILED  {:<40} {took:6.1} s  {why}", case.name);
                println!("{}", world.evidence());
            }
        }
        world.end().await;
    }
    drop(world);
    println!("{passed} passed, {failed} failed");
    failed == 0
}
