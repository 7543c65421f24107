//! Reports of members: which of them are late, and which tell the leader something to act on.

use std::collections::VecDeque;

use crate::protocol::{MemberRecord, Report};

/// Progress alone is written for the leader no more often than this, in milliseconds.
pub const PROGRESS_EVERY_MS: u64 = 10_000;
/// Runs of an agent before the present one that are remembered, so that what is late of them is dropped.
const EARLIER: usize = 4;

/// The order of one pod's reports over the runs of its agent.
#[derive(Clone, Debug, Default)]
pub struct ReportOrder {
    /// Runs before the present one, newest last.
    earlier: VecDeque<String>,
}

impl ReportOrder {
    /// Whether `next` comes after `last`: a higher sequence of the same run, or a run that was not there before.
    pub fn admits(&mut self, last: &Report, next: &Report) -> bool {
        if next.incarnation == last.incarnation {
            return next.sequence > last.sequence;
        }
        if self.earlier.contains(&next.incarnation) {
            return false;
        }
        if self.earlier.len() == EARLIER {
            self.earlier.pop_front();
        }
        self.earlier.push_back(last.incarnation.clone());
        true
    }
}

impl MemberRecord {
    /// Whether the leader acts on what tells this record from `other`. Progress is no such thing, and that an agent is
    /// alive is told by `suspected`.
    pub fn differs_materially(&self, other: &MemberRecord) -> bool {
        let of = |r: &MemberRecord| {
            (
                r.report.state,
                r.report.generation,
                r.report.checkpoint,
                r.report.processes,
                r.report.leaving,
                r.suspected,
            )
        };
        let text = |r: &Report| [r.incarnation.clone(), r.address.clone(), r.agent.clone()];
        of(self) != of(other)
            || text(&self.report) != text(&other.report)
            || self.report.out_of_reach != other.report.out_of_reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(incarnation: &str, sequence: u64) -> Report {
        Report { incarnation: incarnation.to_owned(), sequence, ..Report::default() }
    }

    #[test]
    fn late_reports_are_found_over_the_runs_of_an_agent() {
        let mut order = ReportOrder::default();
        assert!(order.admits(&report("a", 5), &report("a", 6)));
        assert!(!order.admits(&report("a", 5), &report("a", 5)) && !order.admits(&report("a", 5), &report("a", 4)));
        assert!(order.admits(&report("a", 5), &report("b", 1)), "its container was started again");
        assert!(!order.admits(&report("b", 1), &report("a", 9)), "of the container before");
        for run in 0..20 {
            assert!(order.admits(&report(&format!("r{run}"), 1), &report(&format!("r{}", run + 1), 1)));
        }
        assert!(order.earlier.len() <= EARLIER);
    }

    #[test]
    fn progress_is_not_acted_on_and_all_else_is() {
        let at_first = MemberRecord { pod: "p".into(), report: report("a", 1), joined_ms: 0, suspected: false };
        let with = |change: &dyn Fn(&mut MemberRecord)| {
            let mut record = at_first.clone();
            change(&mut record);
            record.differs_materially(&at_first)
        };
        assert!(!with(&|r| r.report.sequence = 2));
        assert!(!with(&|r| r.report.progress = Some(crate::Progress { step: 3, ..Default::default() })));
        assert!(with(&|r| r.report.leaving = true));
        assert!(with(&|r| r.suspected = true));
        assert!(with(&|r| r.report.generation = 1));
        assert!(with(&|r| r.report.state = crate::MemberState::Exited { generation: 1, code: 1 }));
        assert!(with(&|r| r.report.checkpoint = Some(crate::Checkpoint::default())));
        assert!(with(&|r| r.report.address = "10.0.0.2".into()));
        assert!(with(&|r| r.report.incarnation = "b".into()));
        assert!(with(&|r| r.report.out_of_reach = vec!["u2".into()]));
    }
}
