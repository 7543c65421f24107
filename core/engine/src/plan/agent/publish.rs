//! What agents are told, and what of it may be older or newer than the state.

use std::collections::{HashMap, HashSet};

use eto_membership::{Assignment, Member, Order, Round};

use super::super::Action;
use super::super::rounds::batch_env;
use super::super::step::{Step, gaps_of};
use super::facts::count;
use super::orders::Begin;
use crate::contract::WorkerPhase;
use crate::observe::Pod;
use crate::state::{AgentRound, RoundCause, RoundMember, RoundOrder, RoundState};
use crate::time::millis;

/// What an order is called when it is published.
pub(super) fn order(order: RoundOrder) -> Option<Order> {
    match order {
        RoundOrder::Gather => None,
        RoundOrder::Stop => Some(Order::Stop),
        RoundOrder::Run => Some(Order::Run),
    }
}

impl Step<'_> {
    /// A generation that agents know of is not given to another round.
    pub(in crate::plan) fn pass_generations(&mut self) {
        let known = self.facts.group.map_or(0, eto_membership::Group::highest_generation);
        self.state.last_generation = self.state.last_generation.max(known);
    }

    /// A state that is older than what agents were told (a status lost, or from a backup) takes the published round
    /// over, so that nothing is restarted; where that can't be, the next round gets a generation of its own.
    pub(super) fn adopt_published(&mut self) {
        let Some(group) = self.facts.group else { return };
        let (ours, gathers) = (self.generation(), self.order() == RoundOrder::Gather);
        if let Some(published) = &group.assignment {
            let theirs = published.round.generation;
            let newer = theirs > ours || (theirs == ours && gathers);
            if newer && published.order != Order::End && self.take_over(published) {
                return;
            }
            let told = published.round.members.iter().map(|m| m.uid.as_deref().unwrap_or_default());
            let same = told.eq(self.agent().into_iter().flat_map(uids));
            if theirs == ours && !gathers && (!same || published.order == Order::End) {
                self.renumber();
                return;
            }
            // What was told holds, also where it was to be put off.
            let told_run = theirs == ours && published.order == Order::Run;
            let now = self.now;
            if let Some(agent) = self.agent_mut().filter(|a| told_run && a.order == RoundOrder::Stop) {
                (agent.order, agent.in_force) = (RoundOrder::Run, Some(now));
                agent.stopping.clear();
            }
        }
        if group.highest_generation() > ours && !gathers {
            self.renumber();
        }
    }

    fn take_over(&mut self, published: &Assignment) -> bool {
        let pods: HashMap<&str, &Pod> = self.pods.iter().map(|p| (p.uid.as_str(), *p)).collect();
        let mut there = published.round.members.iter().filter_map(|m| pods.get(m.uid.as_deref()?));
        let Some(old) = self.state.round.clone() else { return false };
        // A round of nobody is there to let all stop.
        let nobody = published.round.members.is_empty().then(|| old.template_hash.clone());
        let Some(template_hash) = there.next().map(|p| p.template_hash.clone()).or(nobody) else { return false };
        let members: Vec<RoundMember> = published
            .round
            .members
            .iter()
            .map(|m| RoundMember {
                index: m.index,
                uid: m.uid.clone().unwrap_or_default(),
                address: m.address.clone(),
                processes: m.processes,
            })
            .collect();
        let mut indexes: Vec<u32> = members.iter().map(|m| m.index).collect();
        indexes.sort_unstable();
        let stops = published.order == Order::Stop;
        // Whoever was left out of it is not known any more: what runs, or is not heard of, is waited for.
        let mut stopping = self.to_be_stopped(&AgentRound::default());
        let unknown = |p: &&&Pod| p.phase == WorkerPhase::Running && self.record(p).is_none() && !self.is_cut_off(p);
        stopping.extend(self.pods.iter().filter(unknown).map(|p| p.uid.clone()));
        let in_round: HashSet<&String> = members.iter().map(|m| &m.uid).collect();
        // Where members run, those whom they went on without may still stop.
        stopping.retain(|uid| !in_round.contains(uid));
        if stops {
            stopping.extend(members.iter().map(|m| m.uid.clone()));
        }
        self.state.round = Some(RoundState {
            generation: published.round.generation,
            size: count(members.len()),
            template_hash,
            since: self.now,
            running_since: None,
            complete: Some(self.now),
            gaps: gaps_of(&indexes),
            agent: Some(AgentRound {
                order: if stops { RoundOrder::Stop } else { RoundOrder::Run },
                in_force: Some(self.now),
                firm: false,
                stopping,
                members,
                grace_ms: published.grace_ms,
                native: published.native,
                run_ranks: published.ranks.clone(),
                hung: None,
                why: published.why.clone(),
                charged: false,
                pods_from: 0,
                tells: false,
            }),
            ..old
        });
        self.state.change = None;
        self.note_members();
        true
    }

    /// The same members under a generation that nobody knows yet.
    fn renumber(&mut self) {
        let Some(round) = self.state.round.clone() else { return };
        let pods = self.fit_members();
        let why = "the round before it was another than the operator's";
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(&pods, Begin { cause: round.cause, why, grace_ms, charged: false });
    }

    /// Asks for the order of the present round to be written, where it is not there.
    pub(super) fn publish(&mut self) {
        let (Some(group), Some(round)) = (self.facts.group, self.state.round.as_ref()) else { return };
        let Some(agent) = &round.agent else { return };
        let Some(order) = order(agent.order) else { return };
        let current = group.assignment.as_ref();
        if current.is_some_and(|a| (a.round.generation, a.order) >= (round.generation, order)) {
            return;
        }
        // Within a generation the round and its environment are what was published, to the letter.
        let published = current.filter(|a| a.round.generation == round.generation);
        let members = published.map_or_else(|| self.round_of(round.generation, agent), |a| a.round.clone());
        let env = published.map_or_else(|| batch_env(self.job, &members).into_iter().collect(), |a| a.env.clone());
        let assignment = Assignment {
            round: members,
            order,
            framework: self.job.framework.into(),
            grace_ms: agent.grace_ms,
            native: published.map_or(agent.native, |a| a.native),
            ranks: published.map_or_else(|| agent.run_ranks.clone(), |a| a.ranks.clone()),
            env,
            why: agent.why.clone(),
            hung: order == Order::Stop && round.cause == RoundCause::Hung,
        };
        self.actions.push(Action::Assign(Box::new(assignment)));
    }

    fn round_of(&self, generation: u64, agent: &AgentRound) -> Round {
        let member = |m: &RoundMember| Member {
            index: m.index,
            address: m.address.clone(),
            uid: Some(m.uid.clone()),
            processes: m.processes,
        };
        Round {
            job: self.job.key.to_string(),
            generation,
            id: format!("{}-{generation}", self.job.uid),
            members: agent.members.iter().map(member).collect(),
            coordinator: 0,
            // That of the store, where there is one: it stays where it is.
            port: self.facts.ports.of(agent.native.map_or(generation, |n| n.run)),
            types: self.job.types.clone(),
        }
    }

    /// The job has ended: agents end with the code of their processes.
    pub(in crate::plan) fn tell_end(&mut self) {
        let Some(published) = self.facts.group.and_then(|g| g.assignment.as_ref()) else { return };
        if published.order != Order::End {
            let why = "the job has ended".to_owned();
            let end = Assignment { order: Order::End, why, hung: false, ..published.clone() };
            self.actions.push(Action::Assign(Box::new(end)));
        }
    }
}

fn uids(agent: &AgentRound) -> impl Iterator<Item = &str> {
    agent.members.iter().map(|m| m.uid.as_str())
}
