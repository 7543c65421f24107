//! A job whose status was lost.

use std::time::Duration;

use eto_membership::{MAX_MEMBERS, Order};

use crate::guard::sizes;
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::state::{AgentRound, JobState, Phase, RoundCause, RoundMode, RoundState};
use crate::time::Time;

use super::Group;
use super::step::{fill_up, gaps_of};

/// A job without pods that is younger than this is a new one: it can't have had a round, gained or lost. As long as a look at a
/// new job may take, with the clocks of two machines.
const NEW: Duration = Duration::from_secs(5);

/// Rebuilds the state of a job from its live pods, as after a restore from a backup without status.
///
/// The present round is the newest that has a pod which is not being deleted; its size is what its pods were made
/// for. Where an agent drives it, it is the one that was published, which the next plan takes over: [`needs_group`] says
/// whether `group` is to be read before. The target is that size, never `spec.replicas`, so that a job which its policy has
/// grown is not shrunk. What pods can't tell starts anew: failures, back-off, the resize record. Without pods it is the
/// state of a new job. The next generation is above all that may have been, so that what is written by it is not taken for
/// late.
pub fn recover(job: &JobSpec, pods: &[Pod], group: Option<&Group>, now: Time) -> JobState {
    let told = group.map_or(0, Group::highest_generation);
    let known = pods.iter().map(|p| p.round).max().unwrap_or(0).max(told);
    // Etcd may have lost what was in force, or have that of a backup, and agents that knew better may be gone.
    let tells = pods.iter().any(|p| p.mode == RoundMode::Recreate);
    let is_new = known == 0 && pods.is_empty() && now.since(job.created) < NEW;
    let last_generation = if tells || is_new { known } else { known.max(unseen_generations(job, now)) };
    let mut state = JobState { last_generation, ..JobState::default() };
    let live = || pods.iter().filter(|p| p.deleting.is_none() && p.round > 0);
    let Some(generation) = live().map(|p| p.round).max() else { return state };
    if live().any(|p| p.round == generation && p.mode == RoundMode::Agent) {
        recover_agent_round(&mut state, job, pods, group, now);
        return state;
    }
    let of_round = || live().filter(|p| p.round == generation);
    let mut members: Vec<u32> = of_round().map(|p| p.index).collect();
    members.sort_unstable();
    members.dedup();
    let reach = members.last().map_or(0, |m| m.saturating_add(1));
    // What the pods were made for; where they do not say, the highest index tells how many there were.
    let size = of_round().map(|p| p.round_size).max().filter(|s| *s > 0).unwrap_or(reach).min(MAX_MEMBERS);
    fill_up(&mut members, usize::try_from(size).unwrap_or(usize::MAX));
    state.target = sizes::down(job, size);
    state.based_on = job.replicas;
    state.phase = Phase::Starting;
    state.started_at = of_round().map(|p| p.created).min();
    state.round = Some(RoundState {
        generation,
        size,
        template_hash: of_round().map(|p| p.template_hash.clone()).next().unwrap_or_default(),
        since: of_round().map(|p| p.created).min().unwrap_or(now),
        running_since: None,
        cause: RoundCause::Start,
        complete: None,
        required_nodes: false,
        gaps: gaps_of(&members),
        restarts_charged: of_round().map(|p| p.restarts).max().unwrap_or(0),
        agent: None,
    });
    state
}

/// Rounds of which nothing may be left but what scripts have written: status and etcd are lost, and the pods are gone. A job
/// has had fewer of them than it is old in seconds.
fn unseen_generations(job: &JobSpec, now: Time) -> u64 {
    if job.created == Time(0) { 0 } else { now.since(job.created).as_secs() }
}

/// Whether the state can't be rebuilt without the group, while there is one: who trains in these pods is told there alone,
/// and a job that gathered its members anew would stop them.
pub fn needs_group(pods: &[Pod], gateway: bool, group: Option<&Group>) -> bool {
    gateway && group.is_none() && pods.iter().any(|p| p.mode == RoundMode::Agent)
}

/// What can be told of a job whose pods outlive rounds: how many it is to have. The round is taken over from the group;
/// where nothing was published, pods say for how many they were made, the newest last.
fn recover_agent_round(state: &mut JobState, job: &JobSpec, pods: &[Pod], group: Option<&Group>, now: Time) {
    let live: Vec<&Pod> = pods.iter().filter(|p| p.deleting.is_none() && p.mode == RoundMode::Agent).collect();
    let published = group.and_then(|g| g.assignment.as_ref()).filter(|a| a.order != Order::End);
    let mut indexes: Vec<u32> = live.iter().map(|p| p.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let newest = live.iter().max_by_key(|p| (p.round, p.created, p.round_size));
    let size = published.map_or(indexes.len(), |a| a.round.members.len());
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    let made_for = newest.map(|p| p.round_size).filter(|of| *of > 0 && published.is_none());
    let size = made_for.unwrap_or(size);
    state.target = sizes::down(job, size);
    state.based_on = job.replicas;
    state.phase = Phase::Starting;
    state.started_at = live.iter().map(|p| p.created).min();
    let known = live.iter().map(|p| p.round).max().unwrap_or(0);
    // What is published is to be taken over. Where nothing is, or what is older than the pods, it has to be a generation that
    // nobody has had.
    let stands = group.is_none() || published.is_some_and(|a| a.round.generation >= known);
    let generation = if stands { known } else { state.last_generation + 1 };
    state.last_generation = state.last_generation.max(generation);
    state.round = Some(RoundState {
        generation,
        size,
        template_hash: newest.map(|p| p.template_hash.clone()).unwrap_or_default(),
        since: now,
        running_since: None,
        cause: RoundCause::Start,
        complete: None,
        required_nodes: false,
        gaps: Vec::new(),
        restarts_charged: 0,
        agent: Some(AgentRound { why: "the status was lost".to_owned(), ..AgentRound::default() }),
    });
}
