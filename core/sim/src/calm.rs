//! Stories with one fault at a time, each when the job has recovered from the last: what a fault may cost is known to
//! the letter then.

use eto_engine::job::RestartScope;

use crate::check::Rule;
use crate::faults::Fault;
use crate::story::RECOVERS_IN;
use crate::world::World;

/// What a fault may do to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Price {
    /// One failure is charged.
    Failure,
    /// Nothing is charged.
    Free,
    /// One failure at most: a node that is back before its loss was noticed looks like a container that was killed.
    Perhaps,
    /// No process is restarted: what was lost is no witness of a loss, or none of training's.
    Nothing,
}

const ALL: [(Fault, Price); 20] = [
    (Fault::Exit(1), Price::Failure),
    (Fault::Exit(139), Price::Failure),
    (Fault::OutOfMemory, Price::Failure),
    (Fault::Hang, Price::Failure),
    (Fault::Hang, Price::Failure),
    (Fault::Delete, Price::Free),
    (Fault::Evict, Price::Free),
    (Fault::Drain, Price::Free),
    (Fault::Announce, Price::Perhaps),
    (Fault::PowerOff, Price::Perhaps),
    (Fault::DeleteNode, Price::Free),
    (Fault::Scale, Price::Free),
    (Fault::Suspend, Price::Free),
    (Fault::Template, Price::Free),
    (Fault::CutPod, Price::Perhaps),
    (Fault::CutAgent, Price::Nothing),
    (Fault::GatewayAway, Price::Nothing),
    (Fault::EtcdLost, Price::Nothing),
    (Fault::ApiAway, Price::Nothing),
    (Fault::KillOperator, Price::Nothing),
];

/// What a fault or a change did is over after this, and what follows from it has begun, in milliseconds: a silent node is
/// noticed, and is back.
pub(crate) const FOLLOWS_IN: u64 = 125_000;

/// What is compared before and after.
struct Books {
    charged: u32,
    generation: u64,
}

impl World {
    pub(crate) fn tell_calm(&mut self) {
        for _ in 0..self.scenario.faults {
            if !self.settles(RECOVERS_IN) {
                break;
            }
            let Some((fault, price)) = self.random.pick(&ALL) else { return };
            let before = self.books();
            self.take_backup();
            if !self.strike(fault) {
                continue;
            }
            // What the fault did is over, and what followed from it.
            self.run_until(self.now + FOLLOWS_IN);
            if !self.settles(RECOVERS_IN) {
                break;
            }
            self.settle_books(fault, price, &before);
        }
    }

    fn books(&self) -> Books {
        Books { charged: self.ghost.budget.charged, generation: self.ghost.newest() }
    }

    fn settle_books(&mut self, fault: Fault, price: Price, before: &Books) {
        let after = self.books();
        let charged = after.charged.saturating_sub(before.charged);
        // Those who are started alone fail one by one.
        let each = self.scenario.job.elasticity.restart_scope == RestartScope::Pod;
        let exact = match price {
            Price::Failure => charged == 1 || self.ghost.has_ended(),
            Price::Perhaps => charged <= 1 || each,
            Price::Free | Price::Nothing => charged == 0,
        };
        // What looked like a failure and was none is not to hide one that comes.
        self.ghost.budget.own = after.charged;
        self.training.missed.clear();
        self.demand(exact, Rule::Budget, || format!("{fault:?}: {charged} failures charged"));
        let same = after.generation == before.generation;
        self.demand(price != Price::Nothing || same, Rule::Undisturbed, || {
            format!("{fault:?} led from round {} to {}", before.generation, after.generation)
        });
    }
}
