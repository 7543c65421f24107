//! The membership gateway: what it hears, what of it goes to etcd, and what it tells. Which reports are late and which are
//! worth a write is decided by the rules that `core/gateway` has too; suspicion is modelled here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eto_membership::{Assignment, MemberRecord, PROGRESS_EVERY_MS, Report, ReportOrder, SUSPECT_AFTER_MS};

use crate::world::{What, World};

/// How long records outlive a gateway that is gone, in milliseconds.
const LEASE: u64 = 20_000;

#[derive(Debug)]
struct Session {
    record: MemberRecord,
    order: ReportOrder,
    heard: u64,
    written: Option<(MemberRecord, u64)>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) up: bool,
    sessions: BTreeMap<String, Session>,
    /// Nobody is suspected before.
    grace_until: u64,
    /// Since when it has been away.
    down_since: u64,
    /// Pods whose tokens were looked at while the API server answered.
    trusted: BTreeSet<String>,
    /// Latency of messages, beyond the usual, while a fault lasts.
    pub(crate) slow: u64,
}

impl Gateway {
    pub(crate) fn new(now: u64) -> Self {
        Gateway {
            up: true,
            sessions: BTreeMap::new(),
            grace_until: now + SUSPECT_AFTER_MS,
            down_since: 0,
            trusted: BTreeSet::new(),
            slow: 0,
        }
    }

    pub(crate) fn write_all_again(&mut self) {
        self.sessions.values_mut().for_each(|s| s.written = None);
    }

    pub(crate) fn stop(&mut self, now: u64) {
        if self.up {
            (self.up, self.down_since) = (false, now);
            self.sessions.clear();
            self.trusted.clear();
        }
    }

    pub(crate) fn start(&mut self, now: u64) {
        (self.up, self.grace_until) = (true, now + SUSPECT_AFTER_MS);
    }
}

impl World {
    /// How long a message takes; `None` = it does not arrive.
    fn transit(&mut self) -> Option<u64> {
        let loss = if self.storm { self.scenario.loss } else { 0 };
        let most = self.scenario.latency + self.gateway.slow;
        let delay = self.random.between(1, most);
        (!self.random.percent(loss)).then_some(delay)
    }

    /// A report is on its way: late, lost or twice.
    pub(crate) fn post(&mut self, uid: &str, report: &Report) {
        let copies = if self.storm && self.random.percent(self.scenario.loss) { 2 } else { 1 };
        for _ in 0..copies {
            if let Some(delay) = self.transit() {
                self.after(delay, What::Report { uid: uid.to_owned(), report: Box::new(report.clone()) });
            }
        }
    }

    pub(crate) fn take_report(&mut self, uid: &str, report: Report) {
        let Some(pod) = self.api.pods.get(uid) else { return };
        if !self.gateway.up || (!self.api.up && !self.gateway.trusted.contains(uid)) {
            return;
        }
        self.gateway.trusted.insert(uid.to_owned());
        let (now, name) = (self.now, pod.name.clone());
        if let Some(session) = self.gateway.sessions.get_mut(uid) {
            if !session.hear(report, now) {
                return;
            }
        } else {
            let record = MemberRecord { pod: name, report, joined_ms: now, suspected: false };
            let session = Session { record, order: ReportOrder::default(), heard: now, written: None };
            self.gateway.sessions.insert(uid.to_owned(), session);
        }
        self.write_due();
    }

    /// Finds out who is silent; once a second.
    pub(crate) fn sweep(&mut self) {
        self.after(1_000, What::Sweep);
        let now = self.now;
        if !self.gateway.up {
            if now.saturating_sub(self.gateway.down_since) >= LEASE
                && self.etcd.up
                && !self.etcd.kept.members.is_empty()
            {
                self.etcd.kept.members.clear();
                self.group_changed();
            }
            return;
        }
        let pods = &self.api.pods;
        self.gateway.sessions.retain(|uid, _| pods.contains_key(uid));
        if now >= self.gateway.grace_until {
            for session in self.gateway.sessions.values_mut() {
                session.record.suspected |= now.saturating_sub(session.heard) >= SUSPECT_AFTER_MS;
            }
        }
        self.write_due();
    }

    fn write_due(&mut self) {
        let now = self.now;
        if !self.etcd.up {
            return;
        }
        let mut changed = false;
        for (uid, session) in &mut self.gateway.sessions {
            if session.is_due(now) {
                session.written = Some((session.record.clone(), now));
                self.etcd.kept.members.insert(uid.clone(), session.record.clone());
                changed = true;
            }
        }
        // What no session stands behind is bound to a lease that has ended, or to a pod that is gone.
        let settled = now >= self.gateway.grace_until.saturating_sub(SUSPECT_AFTER_MS) + LEASE;
        let (pods, sessions, before) = (&self.api.pods, &self.gateway.sessions, self.etcd.kept.members.len());
        self.etcd.kept.members.retain(|uid, _| sessions.contains_key(uid) || (pods.contains_key(uid) && !settled));
        if changed || self.etcd.kept.members.len() != before {
            self.group_changed();
        }
    }

    /// Every watch brings what is in force now.
    pub(crate) fn tell_agents(&mut self) {
        let Some(assignment) = self.etcd.kept.assignment.clone() else { return };
        let uids: Vec<String> = self.containers.keys().cloned().collect();
        for uid in uids {
            self.tell_agent(&uid, &assignment);
        }
    }

    /// A watch that broke, or that lost something, begins anew with what is in force.
    pub(crate) fn watch_again(&mut self, uid: &str) {
        let Some(assignment) = self.etcd.kept.assignment.clone() else { return };
        let known = |a: &Assignment| (a.round.generation, a.order);
        let has = self.containers.get(uid).and_then(|c| c.agent.assignment()).map(known);
        if has != Some(known(&assignment)) {
            self.tell_agent(uid, &assignment);
        }
    }

    fn tell_agent(&mut self, uid: &str, assignment: &Arc<Assignment>) {
        if !self.gateway.up || !self.api.pods.contains_key(uid) {
            return;
        }
        let Some(life) = self.containers.get(uid).map(|c| c.life) else { return };
        let assignment = &self.defect.map_or_else(|| Arc::clone(assignment), |d| d.garble(assignment));
        if let Some(delay) = self.transit() {
            self.after(delay, What::Told { uid: uid.to_owned(), life, assignment: Arc::clone(assignment) });
        }
    }

    pub(crate) fn start_gateway(&mut self) {
        self.gateway.start(self.now);
        self.note(|_| "the gateway is back".to_owned());
    }

    /// Whether the gateway has heard of this pod lately.
    pub(crate) fn is_heard(&self, uid: &str) -> bool {
        self.gateway.sessions.get(uid).is_some_and(|s| !s.record.suspected)
    }
}

impl Session {
    fn hear(&mut self, report: Report, now: u64) -> bool {
        if !self.order.admits(&self.record.report, &report) {
            return false;
        }
        (self.record.report, self.record.suspected, self.heard) = (report, false, now);
        true
    }

    fn is_due(&self, now: u64) -> bool {
        let Some((written, at)) = &self.written else { return true };
        written.differs_materially(&self.record)
            || (written.report.progress != self.record.report.progress && now.saturating_sub(*at) >= PROGRESS_EVERY_MS)
    }
}
