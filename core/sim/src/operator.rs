//! The operator's shell around the real `plan`: caches that lag, a state that is written before anything is done,
//! actions one after the other, an end between any two of them, and two replicas of which one leads.

use std::sync::Arc;

use eto_engine::plan::{Action, LOOK_AGAIN, Refused};
use eto_engine::time::{Time, millis};

use crate::api::WriteError;
use crate::etcd::AssignError;
use crate::replica::{News, Next};
use crate::world::{What, World};

/// How long the Lease is good for without a renewal, and how long its holder believes in it, in milliseconds.
const LEASE: u64 = 15_000;
const BELIEF: u64 = 10_000;

impl World {
    pub(crate) fn tell_replicas(&mut self, news: &News) {
        for at in 0..self.replicas.len() {
            let life = self.replicas[at].life;
            if life == 0 {
                continue;
            }
            let lag = self.random.between(1, self.scenario.lag);
            let source = news.source();
            let due = (self.now + lag).max(self.replicas[at].newest[source]);
            self.replicas[at].newest[source] = due;
            self.after(due - self.now, What::Seen { at, life, news: news.clone() });
        }
    }

    /// Puts off what a replica that stands still would do. True if it did.
    fn put_off(&mut self, at: usize, what: impl FnOnce() -> What) -> bool {
        let until = self.replicas[at].stalled_until;
        if until > self.now {
            self.after(until - self.now, what());
        }
        until > self.now
    }

    pub(crate) fn seen(&mut self, at: usize, life: u64, news: News) {
        if self.put_off(at, || What::Seen { at, life, news: news.clone() }) {
            return;
        }
        let replica = &mut self.replicas[at];
        if replica.life != life {
            return;
        }
        let mut again = false;
        match news {
            News::Job { version, spec, stored } => replica.take_job(version, spec, stored),
            News::Pod { uid, version, pod } => replica.take_pod(uid, version, pod),
            News::Nodes(nodes) => replica.nodes = nodes,
            News::Group(group) => {
                again = replica.group.is_none() && group.is_some() && replica.term != 0;
                replica.group = group;
            }
        }
        // An etcd that was away may know a former leader.
        if again {
            self.replicas[at].claim = self.lead();
        }
        self.look_soon(at, 60);
    }

    pub(crate) fn start_replica(&mut self, at: usize) {
        if self.replicas[at].life != 0 {
            return;
        }
        if !self.api.up {
            self.after(1_000, What::Start { at });
            return;
        }
        self.note(|_| format!("replica {at} of the operator starts"));
        let life = self.new_life();
        let pods = self.api.pods.iter().map(|(uid, p)| (uid.clone(), (self.api.versions[uid], Some(Arc::clone(p)))));
        let pods = pods.collect();
        let (nodes, group) = (Arc::new(self.nodes_seen()), self.group());
        let job = Some((self.api.version, Arc::clone(&self.api.spec), self.api.stored.clone()));
        let replica = &mut self.replicas[at];
        (replica.life, replica.job, replica.pods, replica.nodes, replica.group) = (life, job, pods, nodes, group);
        self.renew(at, life);
    }

    /// Ends without a word, wherever it is.
    pub(crate) fn kill_replica(&mut self, at: usize, back_after: u64) {
        if self.replicas[at].life == 0 {
            return;
        }
        self.note(|_| format!("replica {at} of the operator is killed"));
        self.counts.kills += 1;
        self.replicas[at].forget();
        self.after(back_after, What::Start { at });
    }

    pub(crate) fn renew(&mut self, at: usize, life: u64) {
        if self.put_off(at, || What::Renew { at, life }) || self.replicas[at].life != life {
            return;
        }
        self.after(2_000, What::Renew { at, life });
        self.see_lease(at);
    }

    fn see_lease(&mut self, at: usize) {
        let now = self.now;
        let (holder, until) = self.lease;
        if self.api.up && (holder == at || until <= now) {
            self.lease = (at, now + LEASE);
            self.replicas[at].believes_until = now + BELIEF;
            if self.replicas[at].term == 0 {
                self.begin_to_lead(at);
            }
        } else if self.replicas[at].term != 0 && (self.api.up || self.replicas[at].believes_until <= now) {
            self.note(|_| format!("replica {at} does not lead any more"));
            self.replicas[at].stop_leading();
        }
    }

    fn begin_to_lead(&mut self, at: usize) {
        self.note(|_| format!("replica {at} leads"));
        let term = self.new_life();
        let claim = self.lead();
        let replica = &mut self.replicas[at];
        replica.stop_leading();
        (replica.term, replica.claim, replica.look_at) = (term, claim, u64::MAX);
        self.look_soon(at, 50);
    }

    pub(crate) fn look_soon(&mut self, at: usize, ms: u64) {
        let due = self.now + ms;
        let replica = &mut self.replicas[at];
        let life = replica.term;
        // One that is late enough to be of use is there already.
        if life == 0 || (replica.look_at >= self.now && replica.look_at <= due) {
            return;
        }
        replica.look_at = due;
        self.after(ms, What::Look { at, life });
    }

    /// Whether what a replica is about to do still belongs to its term; and the chance that it ends here.
    fn goes_on(&mut self, at: usize, life: u64) -> bool {
        if self.replicas[at].term != life || life == 0 {
            return false;
        }
        if self.storm && self.random.percent(self.scenario.kill) {
            let back = self.random.between(500, 25_000);
            self.kill_replica(at, back);
            return false;
        }
        true
    }

    pub(crate) fn look(&mut self, at: usize, life: u64) {
        if self.put_off(at, || What::Look { at, life }) || self.replicas[at].term != life || life == 0 {
            return;
        }
        self.replicas[at].look_at = 0;
        if self.replicas[at].busy || self.replicas[at].believes_until <= self.now {
            self.look_soon(at, 500);
            return;
        }
        self.counts.plans += 1;
        let now = Time(self.now.saturating_add_signed(self.replicas[at].skew));
        let named = self.replicas[at].victims();
        let Some(next) = self.replicas[at].think(now, self.defect) else { return };
        self.check_victims(at, &named);
        self.ghost.note_lost(self.replicas[at].cut_off());
        match next {
            Next::Write => {
                self.replicas[at].busy = true;
                let delay = self.random.between(2, 150);
                self.after(delay, What::Write { at, life });
            }
            Next::Act => {
                self.replicas[at].busy = true;
                self.after(2, What::Act { at, life });
            }
            Next::Wait(until) => {
                let ms = until.map_or(30_000, |until| until.0.saturating_sub(now.0)).clamp(10, 30_000);
                self.look_soon(at, ms);
            }
        }
    }

    pub(crate) fn write(&mut self, at: usize, life: u64) {
        if self.put_off(at, || What::Write { at, life }) || !self.goes_on(at, life) {
            return;
        }
        let Some((version, state)) = self.replicas[at].to_write() else {
            self.replicas[at].busy = false;
            self.look_soon(at, 50);
            return;
        };
        let state = Arc::new(state);
        match self.write_status(at, version, &state) {
            Ok(version) => {
                self.replicas[at].written(version, &state);
                let delay = self.random.between(1, 50);
                self.after(delay, What::Act { at, life });
            }
            Err(error) => {
                let delay = if error == WriteError::Away { 1_000 } else { 300 };
                self.replicas[at].busy = false;
                self.look_soon(at, delay);
            }
        }
        self.wake(at);
    }

    /// A replica that stood still finds out what became of its Lease, one write too late.
    fn wake(&mut self, at: usize) {
        if self.replicas[at].believes_until <= self.now {
            self.see_lease(at);
        }
    }

    pub(crate) fn act(&mut self, at: usize, life: u64) {
        if self.put_off(at, || What::Act { at, life }) || !self.goes_on(at, life) {
            return;
        }
        let (action, failed) = match &mut self.replicas[at].mind {
            Some(mind) => (mind.todo.pop_front(), mind.failed),
            None => (None, false),
        };
        let Some(action) = action else {
            self.replicas[at].busy = false;
            self.look_soon(at, if failed { 1_000 } else { millis(LOOK_AGAIN) });
            return;
        };
        let done = self.carry_out(at, &action, failed);
        if let Some(mind) = self.replicas[at].mind.as_mut().filter(|_| !done) {
            mind.failed = true;
        }
        let delay = self.random.between(2, 120);
        self.after(delay, What::Act { at, life });
        self.wake(at);
    }

    /// False if it could not be done.
    fn carry_out(&mut self, at: usize, action: &Action, failed: bool) -> bool {
        match action {
            Action::EnsureService | Action::DeleteJob => true,
            Action::Assign(next) => self.carry_out_assign(at, next),
            Action::DeletePod { uid, why, .. } => {
                if self.api.up && self.api.pods.contains_key(uid) {
                    self.note(|_| format!("replica {at} deletes {uid}: {why}"));
                    self.check_deletion(at, uid);
                }
                let done = self.delete_pod(uid).is_ok();
                if done {
                    self.know_pod(at, uid);
                }
                done
            }
            Action::CreatePod(_) if failed => true,
            Action::CreatePod(new) => {
                self.note(|_| format!("replica {at} makes worker {} ({})", new.index, new.incarnation));
                match self.create_pod(new) {
                    Ok(uid) => {
                        self.know_pod(at, &uid);
                        true
                    }
                    Err(WriteError::Refused) => {
                        let there = self.api.pods.values().filter(|p| p.deleting.is_none()).count();
                        let created = u32::try_from(there).unwrap_or(u32::MAX);
                        let message = "exceeded quota".to_owned();
                        self.replicas[at].refused = Some(Refused { round: new.round, created, message });
                        true
                    }
                    Err(_) => false,
                }
            }
        }
    }

    fn carry_out_assign(&mut self, at: usize, next: &eto_membership::Assignment) -> bool {
        let claim = self.replicas[at].claim;
        match self.assign(at, claim, next) {
            Ok(()) => true,
            Err(AssignError::NotLeading) => {
                // The fence is taken again while the Lease is held.
                if self.lease.0 == at && self.api.up {
                    self.replicas[at].claim = self.lead();
                }
                false
            }
            Err(error) => {
                let generation = next.round.generation;
                self.note(|_| format!("replica {at} could not tell round {generation}: {error:?}"));
                false
            }
        }
    }

    /// What a write answered is known at once.
    fn know_pod(&mut self, at: usize, uid: &str) {
        let version = self.api.versions.get(uid).copied().unwrap_or(0);
        let pod = self.api.pods.get(uid).cloned();
        self.replicas[at].take_pod(uid.to_owned(), version, pod);
    }
}
