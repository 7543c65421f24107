//! Assignments and records to write.

use eto_membership::{Assignment, FrameworkKind, Member, MemberRecord, Order, ReplicaTypes, Report, Round};

/// A round of two members and this order.
pub(crate) fn assignment(generation: u64, order: Order) -> Assignment {
    let member = |index: u32| Member {
        index,
        address: format!("10.0.0.{index}"),
        uid: Some(format!("pod-{index}")),
        processes: 1,
    };
    let round = Round {
        job: "team/job".into(),
        generation,
        id: format!("job-{generation}"),
        members: vec![member(0), member(1)],
        coordinator: 0,
        port: 29500,
        types: ReplicaTypes::default(),
    };
    Assignment::new(round, order, FrameworkKind::PyTorch, 5000)
}

pub(crate) fn report(sequence: u64) -> Report {
    Report {
        agent: "0.6.0".into(),
        incarnation: "first".into(),
        sequence,
        address: "10.0.0.1".into(),
        processes: 1,
        ..Report::default()
    }
}

pub(crate) fn record(sequence: u64) -> MemberRecord {
    MemberRecord { pod: "job-worker-0-x".into(), report: report(sequence), joined_ms: 1_000, suspected: false }
}
