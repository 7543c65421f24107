//! Faults of the product itself, to see that the rules of [`crate::Rule`] find them: an operator, an agent or a gateway
//! that does one thing wrong.

use std::sync::Arc;

use eto_engine::plan::{Action, Plan};
use eto_engine::state::{JobState, Phase, RoundMode, Victim};
use eto_membership::{Assignment, Order};

use crate::Rule;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The operator gives every round the generation 1, and the store takes it.
    OneGeneration,
    /// Agents start their processes twice.
    StartsTwice,
    /// The gateway tells agents to run when they are to stop.
    RunsForStop,
    /// The operator lets a round run without having stopped the one before.
    NeverStops,
    /// The operator lets another member coordinate in a run that goes on.
    MovesTheStore,
    /// The operator gives members that are started alone another rank than the one they had.
    MovesRanks,
    /// The operator aims at more workers than the job allows.
    TooMany,
    /// The operator gives up the master of a round that trains.
    GivesUpTheMaster,
    /// The operator deletes all pods before it stops what runs in them.
    DeletesFirst,
    /// Scripts tell of a checkpoint before it is written.
    ClaimsTooEarly,
    /// The operator charges each change of a round as a failure.
    ChargesChanges,
    /// The operator takes up what has ended.
    TakesUpTheEnd,
    /// The operator makes pods without an agent for a job that has one.
    ForgetsTheAgent,
    /// The operator publishes nothing.
    SaysNothing,
    /// The operator does not notice that nothing is trained.
    SeesNoHang,
}

impl Defect {
    /// Each of them, and the rule that it breaks.
    pub const ALL: [(Defect, Rule); 15] = [
        (Defect::OneGeneration, Rule::OneRound),
        (Defect::StartsTwice, Rule::OneGroup),
        (Defect::RunsForStop, Rule::StartsByOrder),
        (Defect::NeverStops, Rule::StoppedFirst),
        (Defect::MovesTheStore, Rule::OneStore),
        (Defect::MovesRanks, Rule::OneRank),
        (Defect::TooMany, Rule::LegalSize),
        (Defect::GivesUpTheMaster, Rule::MasterStays),
        (Defect::DeletesFirst, Rule::DeletedAfterStop),
        (Defect::ClaimsTooEarly, Rule::CheckpointKept),
        (Defect::ChargesChanges, Rule::Budget),
        (Defect::TakesUpTheEnd, Rule::Terminal),
        (Defect::ForgetsTheAgent, Rule::Undisturbed),
        (Defect::SaysNothing, Rule::Liveness),
        (Defect::SeesNoHang, Rule::Liveness),
    ];

    /// Does to a plan what an engine with this defect would have done. `before`: the state that was planned from;
    /// `most`: the job's maximum.
    pub(crate) fn spoil(self, plan: &mut Plan, before: &JobState, most: u32) {
        match self {
            Defect::OneGeneration => each_assignment(plan, |next| next.round.generation = 1),
            Defect::NeverStops => each_assignment(plan, |next| {
                if next.order == Order::Stop {
                    next.order = Order::Run;
                }
            }),
            Defect::MovesTheStore => each_assignment(plan, |next| {
                if next.native.is_some_and(|n| n.run < next.round.generation) {
                    next.round.members.reverse();
                }
            }),
            Defect::MovesRanks => each_assignment(plan, |next| {
                if next.native.is_some_and(|n| n.alone && n.run < next.round.generation) {
                    next.round.members.get_mut(1..).into_iter().for_each(|m| m.rotate_left(usize::from(m.len() > 1)));
                }
                next.ranks = next.round.members.iter().map(|m| m.index).collect();
            }),
            Defect::TooMany => plan.state.target = most + 1,
            Defect::GivesUpTheMaster if plan.state.victims.iter().all(|v| v.index != 0) => {
                plan.state.victims.extend(victim(before, 0));
            }
            Defect::DeletesFirst if stops(plan) => {
                let members = before.round.iter().filter_map(|r| r.agent.as_ref()).flat_map(|a| &a.members);
                let first = members.map(|m| Action::DeletePod {
                    name: m.uid.clone(),
                    uid: m.uid.clone(),
                    why: "by a defect".to_owned(),
                });
                plan.actions.splice(0..0, first.collect::<Vec<_>>());
            }
            Defect::ChargesChanges if stops(plan) => plan.state.failures += 1,
            Defect::TakesUpTheEnd if before.phase.is_terminal() => plan.state.phase = Phase::Running,
            Defect::ForgetsTheAgent => {
                for action in &mut plan.actions {
                    if let Action::CreatePod(new) = action {
                        new.mode = RoundMode::Recreate;
                    }
                }
            }
            Defect::SaysNothing => plan.actions.retain(|a| !matches!(a, Action::Assign(_))),
            _ => {}
        }
    }

    /// What the gateway tells an agent instead.
    pub(crate) fn garble(self, assignment: &Arc<Assignment>) -> Arc<Assignment> {
        let mut told = (**assignment).clone();
        if self == Defect::RunsForStop && told.order == Order::Stop {
            told.order = Order::Run;
        }
        Arc::new(told)
    }
}

fn each_assignment(plan: &mut Plan, change: impl Fn(&mut Assignment)) {
    for action in &mut plan.actions {
        if let Action::Assign(next) = action {
            change(next);
        }
    }
}

/// Whether something that runs is to be stopped.
fn stops(plan: &Plan) -> bool {
    plan.actions.iter().any(|a| matches!(a, Action::Assign(next) if next.order == Order::Stop))
}

fn victim(state: &JobState, index: u32) -> Option<Victim> {
    let member = state.round.as_ref()?.agent.as_ref()?.members.iter().find(|m| m.index == index)?;
    Some(Victim { pod: member.uid.clone(), uid: member.uid.clone(), index, reason: "by a defect".to_owned() })
}
