//! Rounds by pod recreation: how one begins, and how its pods come to be.

use std::collections::BTreeSet;
use std::sync::Arc;

use eto_membership::{Batch, Candidate, Member, Round, process_env};

use super::env::RoundEnv;
use super::outcome::BACKOFF_CAP;
use super::step::{Step, fill_up, gaps_of, members_of};
use super::{Action, Addressing, EventReason, NewPod, PlanFacts, PodEnv, hostname, service_name, target, victims};
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::placement::NodeChoice;
use crate::state::{ChangeBy, JobState, Phase, RoundCause, RoundMode, RoundOrder, RoundState};
use crate::time::{Time, millis};

/// A pod that is being deleted on a node that is not ready is waited for this long beyond its own grace, in
/// milliseconds: its kubelet will not confirm.
const STUCK_AFTER_MS: u64 = 60_000;

/// How the processes of a round make up the job's global batch, for their environment. Empty where the job names none, or
/// where the round can't share it evenly: that is then the script's to settle.
pub(super) fn batch_env(job: &JobSpec, round: &Round) -> Vec<(String, String)> {
    let batch = job.elasticity.batch.and_then(|batch| batch.split(round.processes()));
    batch.into_iter().flat_map(Batch::env).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The present round by recreation as its members are told of it. `alone`: nobody beside the command starts processes.
fn membership(job: &JobSpec, facts: &PlanFacts<'_>, round: &RoundState, members: &[u32], alone: bool) -> Option<Round> {
    let key = &job.key;
    let address = |index: u32| match facts.addressing {
        Addressing::Service => {
            format!("{}.{}.{}.svc", hostname(&key.name, index), service_name(&key.name), key.namespace)
        }
        Addressing::Host(host) => host.to_owned(),
    };
    let candidate = |&index: &u32| Candidate {
        member: Member { index, address: address(index), uid: None, processes: job.processes_of(index, alone) },
        healthy_since_ms: None,
    };
    let candidates = members.iter().map(candidate).collect();
    let round = Round::plan(&key.to_string(), &job.uid, round.generation, candidates, facts.ports);
    round.map(|r| r.with_types(&job.types))
}

/// The environment of each process of a new pod of the present round, in the place of [`NewPod::env`]: for who starts a
/// worker's processes one by one, where the command does not do so itself. Empty where the index is in no round.
pub fn process_envs(job: &JobSpec, state: &JobState, facts: &PlanFacts<'_>, index: u32) -> Vec<Vec<(String, String)>> {
    let Some(round) = &state.round else { return Vec::new() };
    let full = membership(job, facts, round, &members_of(round), false);
    let Some((full, rank)) = full.and_then(|full| full.rank_of(index).map(|rank| (full, rank))) else {
        return Vec::new();
    };
    let of = |local| process_env(job.framework.into(), &full, rank, local);
    let all = (0..job.processes_of(index, false)).map(of).take_while(|env| !env.is_empty());
    all.map(|env| [env, batch_env(job, &full)].concat()).collect()
}

impl Step<'_> {
    /// Decides a new round of new pods, of the target's size: with an agent where one can drive it. A job that has done
    /// without agents until now goes on so while nobody can be told anything: it would wait for etcd without need.
    pub(super) fn begin_round(&mut self, cause: RoundCause, why: &str) {
        let recreates = self.round().is_some_and(|r| r.agent.is_none());
        // A round that can't wait goes on without; the next one may know.
        self.wants_image |= self.is_image_pending();
        match self.wanted_mode().0 {
            RoundMode::Agent if self.facts.group.is_some() || !recreates => self.begin_gathering(cause, why),
            RoundMode::Agent | RoundMode::Recreate => self.begin_recreation(cause, why),
        }
    }

    /// Decides a new round of the target's size. Whom it leaves out is named in the state first.
    pub(super) fn begin_recreation(&mut self, cause: RoundCause, why: &str) {
        let size = self.state.target;
        let hash = self.job.template.as_ref().map(|t| t.hash.clone());
        let old = self.state.round.clone();
        let template_hash = hash.or_else(|| old.as_ref().map(|r| r.template_hash.clone())).unwrap_or_default();
        let members = self.next_members(size);
        if old.as_ref().is_some_and(|r| r.size != size) && !self.in_flight_to(size) {
            target::record(&mut self.state, size, ChangeBy::Operator, why.to_owned(), self.now);
        }
        self.state.last_generation = self.state.last_generation.max(self.newest_generation()) + 1;
        if let Some(old) = &old {
            self.warn_of_loss(old, self.state.last_generation);
        }
        self.state.round = Some(RoundState {
            generation: self.state.last_generation,
            size,
            template_hash,
            since: self.now,
            running_since: None,
            cause,
            complete: None,
            required_nodes: false,
            gaps: gaps_of(&members),
            restarts_charged: 0,
            agent: None,
        });
        self.state.change = None;
        self.note_members();
        self.notes.why = Some(why.to_owned());
        self.state.started_at.get_or_insert(self.now);
        let message = format!("round {} of {size} workers: {why}", self.state.last_generation);
        self.event(false, EventReason::RoundStarted, message);
    }

    pub(super) fn in_flight_to(&self, size: u32) -> bool {
        self.state.last_resize.as_ref().is_some_and(|r| r.to == size && (r.done.is_none() || r.refused))
    }

    /// A generation that was used and forgotten (a lost status) is not used again.
    pub(super) fn newest_generation(&self) -> u64 {
        self.pods.iter().map(|p| p.round).max().unwrap_or(0)
    }

    /// The present members less the victims, or with the lowest free indexes added. All who are no workers are among them.
    fn next_members(&mut self, size: u32) -> Vec<u32> {
        let mut members = self.members();
        self.add_types(&mut members);
        let want = usize::try_from(size).unwrap_or(usize::MAX);
        if members.len() > want {
            let count = members.len() - want;
            let chosen = victims::choose(self, &members, count);
            let go: BTreeSet<u32> = chosen.iter().map(|(index, ..)| *index).collect();
            members.retain(|m| !go.contains(m));
            for (index, pod, reason) in chosen {
                if let Some(pod) = pod {
                    self.name_victim(pod, index, reason);
                }
            }
        }
        fill_up(&mut members, want);
        members
    }

    /// Deletes what is not of the present round; when all of it is gone, makes what is missing.
    pub(super) fn carry_out(&mut self) {
        let Some(round) = self.state.round.clone() else { return };
        let members = members_of(&round);
        let keep = |step: &Self, pod: &Pod| {
            pod.round == round.generation
                && members.binary_search(&pod.index).is_ok()
                && step.pod(pod.index).is_some_and(|best| best.uid == pod.uid)
        };
        let stray: Vec<&Pod> = self.pods.iter().copied().filter(|p| !keep(self, p)).collect();
        let given_up = self.victim_reasons();
        for pod in &stray {
            let reason = given_up.get(&pod.uid);
            let why = reason.map_or_else(|| format!("round {} is over", pod.round), |why| format!("given up: {why}"));
            self.delete(pod, &why);
        }
        if stray.iter().any(|p| self.is_waited_for(p)) {
            return;
        }
        let missing: Vec<u32> = members.iter().copied().filter(|i| self.pod(*i).is_none()).collect();
        if missing.is_empty() {
            if round.complete.is_none() {
                self.set_complete();
            }
        } else if round.complete.is_none() && self.job.template.is_some() {
            match self.state.not_before.filter(|t| *t > self.now) {
                Some(later) => self.looks.push(later),
                None => self.create(&round, &members, &missing),
            }
        }
    }

    pub(super) fn set_complete(&mut self) {
        let now = self.now;
        if let Some(round) = &mut self.state.round {
            round.complete = Some(now);
        }
    }

    /// Whether a pod that is to go keeps the next round waiting.
    pub(super) fn is_waited_for(&mut self, pod: &Pod) -> bool {
        let Some(asked) = pod.deleting.filter(|_| self.is_sick(pod)) else { return true };
        let patience = millis(self.job.elasticity.drain_deadline).saturating_add(STUCK_AFTER_MS);
        let until = Time(asked.0.saturating_add(patience));
        self.looks.push(until);
        self.now < until
    }

    fn create(&mut self, round: &RoundState, members: &[u32], missing: &[u32]) {
        // `eto run`, which has them all on one host, starts processes as an agent does.
        let alone = matches!(self.facts.addressing, Addressing::Service);
        let Some(full) = membership(self.job, self.facts, round, members, alone) else { return };
        let more = batch_env(self.job, &full);
        let all = Arc::new(RoundEnv { round: full, framework: self.job.framework.into(), more });
        let memory = self.memory(&round.template_hash);
        self.actions.push(Action::EnsureService);
        // In the order of their indexes, as `missing` is.
        for (rank, member) in all.round.members.iter().enumerate() {
            let index = &member.index;
            if missing.binary_search(index).is_err() {
                continue;
            }
            let node = self.place(*index);
            self.actions.push(Action::CreatePod(NewPod {
                index: *index,
                round: round.generation,
                size: round.size,
                incarnation: round.generation,
                mode: RoundMode::Recreate,
                env: PodEnv::Member(Arc::clone(&all), rank),
                node,
                memory: memory.filter(|_| self.job.types.is_worker(*index)),
            }));
        }
    }

    /// Where the placement policy wants a new worker. After a try that did not work out its demands are wishes.
    pub(super) fn place(&mut self, index: u32) -> Option<NodeChoice> {
        let choice = self.facts.places.and_then(|p| p.get(&index)).cloned()?;
        let anywhere = self.state.change.as_ref().is_some_and(|c| c.anywhere);
        let required = choice.required && self.state.start_attempts == 0 && !anywhere;
        if let Some(round) = self.state.round.as_mut().filter(|_| required) {
            round.required_nodes = true;
        }
        Some(NodeChoice { required, ..choice })
    }

    /// Notes when all of the round runs, and sets the phase.
    pub(super) fn watch_start(&mut self) {
        let Some(round) = self.state.round.clone() else {
            self.watch_phase();
            return;
        };
        let at_work = |p: &Pod| p.is_ready() || p.phase == crate::contract::WorkerPhase::Succeeded;
        let all_ready = members_of(&round).iter().all(|i| self.pod(*i).is_some_and(at_work));
        if round.running_since.is_none() && all_ready && round.complete.is_some() {
            self.note_running(&round);
        }
        if let Some(since) = round.running_since {
            self.close_resize(round.size);
            if self.now.since(since) >= BACKOFF_CAP {
                self.state.start_attempts = 0;
            } else if self.state.start_attempts > 0 {
                self.looks.push(since.plus(BACKOFF_CAP));
            }
        }
        self.watch_phase();
    }

    /// Sets the phase by how far the round is.
    pub(super) fn watch_phase(&mut self) {
        let Some(round) = self.round() else {
            self.state.phase = Phase::Pending;
            return;
        };
        let gathers = round.agent.as_ref().is_some_and(|a| a.order == RoundOrder::Gather);
        self.state.phase = match round.cause {
            _ if round.running_since.is_some() => Phase::Running,
            RoundCause::WorkerLost | RoundCause::Hung => Phase::Restarting,
            RoundCause::Grow | RoundCause::Shrink | RoundCause::TemplateChanged | RoundCause::Moved => Phase::Resizing,
            RoundCause::GrowthRefused if !gathers => Phase::Resizing,
            _ if round.complete.is_none() => Phase::Pending,
            _ => Phase::Starting,
        };
    }

    /// A resize that was decided and taken back before a round began (`spec.replicas` set to and fro) has nothing left
    /// to do.
    pub(super) fn close_resize(&mut self, size: u32) {
        let now = self.now;
        if let Some(resize) = self.state.last_resize.as_mut().filter(|r| r.done.is_none() && r.to == size) {
            resize.done = Some(now);
        }
    }

    fn note_running(&mut self, round: &RoundState) {
        let now = self.now;
        if let Some(round) = &mut self.state.round {
            round.running_since = Some(now);
        }
        self.state.not_before = None;
        let message = format!("all {} workers of round {} are ready", round.size, round.generation);
        self.event(false, EventReason::RoundRunning, message);
        let Some(resize) = self.state.last_resize.as_mut().filter(|r| r.done.is_none() && r.to == round.size) else {
            return;
        };
        resize.done = Some(now);
        resize.refusals = 0;
        let message = format!("resized from {} to {}", resize.from, resize.to);
        self.event(false, EventReason::SuccessfulRescale, message);
    }
}
