//! Tests of [`crate::sessions`].
#![allow(clippy::unwrap_used)]

use eto_membership::{Checkpoint, MemberState, Progress};

use super::*;

const S: u64 = 1_000;

fn caller(pod: &str) -> Caller {
    Caller { namespace: "ns".into(), pod: format!("name-{pod}"), pod_uid: pod.into(), job_uid: "job".into() }
}

fn report(sequence: u64) -> Report {
    Report { incarnation: "a".into(), sequence, ..Report::default() }
}

/// Takes all writes that are due, as if they succeeded; their records.
fn write(sessions: &mut Sessions, now: u64) -> Vec<MemberRecord> {
    let mut all = Vec::new();
    while let Some(due) = sessions.next_due() {
        sessions.done(&due, Some(Put::Written(i64::try_from(now).unwrap() + 1)), now);
        all.push(due.record);
    }
    all
}

#[test]
fn heartbeats_write_nothing() {
    let mut s = Sessions::new(10, 0);
    assert_eq!(s.report(&caller("p"), report(1), 0, 77), Heard::Taken);
    let first = write(&mut s, 0);
    assert_eq!((first.len(), first[0].joined_ms, first[0].pod.as_str()), (1, 77, "name-p"));
    for i in 1..200 {
        assert_eq!(s.report(&caller("p"), report(1 + i), i * 5 * S, 0), Heard::Taken);
        s.sweep(i * 5 * S);
        assert_eq!(write(&mut s, i * 5 * S), []);
    }
    let checkpoint = Some(Checkpoint { generation: 1, step: 10, at_ms: 1 });
    let now = 1_000 * S;
    for (at, change) in [
        Report { generation: 1, ..report(300) },
        Report { generation: 1, state: MemberState::Running { generation: 1 }, ..report(301) },
        Report { generation: 1, state: MemberState::Running { generation: 1 }, checkpoint, ..report(302) },
        // A node that shuts down deletes no pods: this is the first, and may be the only, word of it.
        Report {
            generation: 1,
            state: MemberState::Running { generation: 1 },
            checkpoint,
            leaving: true,
            ..report(303)
        },
    ]
    .into_iter()
    .enumerate()
    {
        s.report(&caller("p"), change.clone(), now, 0);
        let written = write(&mut s, now);
        assert_eq!(written.len(), 1, "change {at}");
        assert_eq!(written[0].report, change);
        assert_eq!(written[0].joined_ms, 77);
    }
}

/// A node that shuts down tells its pods before the API server knows of it.
#[test]
fn that_a_pod_is_being_stopped_is_written_at_once() {
    let mut s = Sessions::new(10, 0);
    let running = Report { generation: 1, state: MemberState::Running { generation: 1 }, ..report(1) };
    s.report(&caller("p"), running.clone(), 0, 0);
    write(&mut s, 0);
    s.report(&caller("p"), Report { sequence: 2, leaving: true, ..running }, S, 0);
    let written = write(&mut s, S);
    assert!(written.len() == 1 && written[0].report.leaving, "{written:?}");
}

#[test]
fn progress_is_written_every_ten_seconds() {
    let mut s = Sessions::new(10, 0);
    let mut writes = 0;
    for second in 0..=65u64 {
        let progress = Some(Progress { step: second, ..Progress::default() });
        s.report(&caller("p"), Report { progress, ..report(second + 1) }, second * S, 0);
        s.sweep(second * S);
        writes += write(&mut s, second * S).len();
    }
    assert_eq!(writes, 7, "the first, and one every ten seconds");
    // The last of it is written though nothing more is told.
    s.sweep(70 * S);
    assert_eq!(write(&mut s, 70 * S)[0].report.progress.unwrap().step, 65);
}

#[test]
fn progress_of_many_is_written_more_seldom() {
    const MEMBERS: usize = 10_000;
    let mut s = Sessions::new(20_000, 0);
    let mut writes = 0;
    for second in 0..=60u64 {
        for pod in (0..MEMBERS).filter(|pod| *pod as u64 % 5 == second % 5) {
            let progress = Some(Progress { step: second, ..Progress::default() });
            s.report(&caller(&pod.to_string()), Report { progress, ..report(second + 1) }, second * S, 0);
        }
        s.sweep(second * S);
        writes += write(&mut s, second * S).len();
    }
    let told = 60 * 500;
    assert!((MEMBERS..=MEMBERS + told).contains(&writes), "{writes}");
    assert!(writes > MEMBERS + told / 2, "{writes}: it is told all the same");
}

#[test]
fn late_reports_are_dropped() {
    let mut s = Sessions::new(10, 0);
    let other = |i: &str, n: u64| Report { incarnation: i.into(), ..report(n) };
    assert_eq!(s.report(&caller("p"), report(5), 0, 0), Heard::Taken);
    assert_eq!(s.report(&caller("p"), report(5), 0, 0), Heard::Stale);
    assert_eq!(s.report(&caller("p"), report(4), 0, 0), Heard::Stale);
    assert_eq!(s.report(&caller("p"), other("b", 1), 0, 0), Heard::Taken, "its container was started again");
    assert_eq!(s.report(&caller("p"), report(6), 0, 0), Heard::Stale, "of the container before");
}

#[test]
fn silence_is_told_once_and_after_ten_minutes_the_record_goes() {
    let mut s = Sessions::new(10, 0);
    let mut at = 60 * S;
    let mut step = |s: &mut Sessions, seconds: u64| {
        for _ in 0..seconds {
            at += S;
            s.sweep(at);
        }
        at
    };
    let now = step(&mut s, 1);
    s.report(&caller("p"), report(1), now, 0);
    write(&mut s, now);
    let now = step(&mut s, 14);
    assert_eq!(write(&mut s, now), []);
    let now = step(&mut s, 1);
    // The first look of this test was after a standstill, so nobody is suspected yet.
    let now = if s.grace_until_ms > now { step(&mut s, 15) } else { now };
    let told = write(&mut s, now);
    assert!(told.len() == 1 && told[0].suspected);
    let now = step(&mut s, 60);
    assert_eq!(write(&mut s, now), []);
    s.report(&caller("p"), report(2), now, 0);
    assert!(!write(&mut s, now)[0].suspected, "heard again");
    step(&mut s, 600);
    let due = s.next_due().unwrap();
    assert!(due.leaves);
    s.done(&due, Some(Put::Theirs), 0);
    assert_eq!((s.len(), s.due(), s.job_uids().len()), (0, 0, 0));
}

#[test]
fn nobody_is_suspected_for_a_standstill_of_the_replica() {
    let mut s = Sessions::new(10, 0);
    s.report(&caller("p"), report(1), 0, 0);
    write(&mut s, 0);
    s.sweep(S);
    s.sweep(120 * S);
    assert_eq!(write(&mut s, 120 * S), [], "it was this replica that did not look");
    s.report(&caller("p"), report(2), 121 * S, 0);
    for second in 122..=134 {
        s.sweep(second * S);
    }
    assert_eq!(write(&mut s, 134 * S), []);
}

#[test]
fn another_lease_writes_all_anew() {
    let mut s = Sessions::new(10, 0);
    for pod in ["a", "b", "c"] {
        s.report(&caller(pod), report(1), 0, 0);
    }
    assert_eq!(write(&mut s, 0).len(), 3);
    s.lease_changed();
    assert_eq!(s.next_due().unwrap().revision, 0);
    assert_eq!(write(&mut s, 1).len(), 2);
}

#[test]
fn records_of_other_replicas_are_left_to_them() {
    let ours = 7;
    let mut s = Sessions::new(10, 0);
    s.report(&caller("p"), report(4), 0, 0);
    write(&mut s, 9); // revision 10
    let record =
        |sequence| MemberRecord { pod: "name-p".into(), report: report(sequence), joined_ms: 0, suspected: false };
    let seen = |lease, revision, record| Seen { owner: Owner { lease, revision }, record };
    let (old, same, new) = (record(3), record(4), record(5));
    // Ours, and news of before.
    s.compare("job", &BTreeMap::from([("p", seen(ours, 10, Some(&same)))]), ours, 10, false);
    s.compare("job", &BTreeMap::from([("p", seen(8, 5, Some(&old)))]), ours, 5, false);
    s.compare("job", &BTreeMap::new(), ours, 9, false);
    assert_eq!((s.len(), s.due()), (1, 0));
    // The agent was here after it was there.
    s.compare("job", &BTreeMap::from([("p", seen(8, 11, Some(&old)))]), ours, 11, false);
    assert_eq!((s.len(), s.next_due().unwrap().revision), (1, 11));
    s.done(
        &Due { job_uid: "job".into(), pod_uid: "p".into(), record: record(4), revision: 11, leaves: false },
        Some(Put::Written(12)),
        0,
    );
    // And now it is there.
    s.compare("job", &BTreeMap::from([("p", seen(8, 13, Some(&new)))]), ours, 13, false);
    assert_eq!((s.len(), s.due()), (0, 0));
}

#[test]
fn what_etcd_lost_is_written_again() {
    let mut s = Sessions::new(10, 0);
    s.report(&caller("p"), report(4), 0, 0);
    write(&mut s, 9); // revision 10
    s.compare("job", &BTreeMap::new(), 7, 10, false);
    assert_eq!(s.next_due().unwrap().revision, 0);
    // Restored: an older record of ours, and revisions that count from anew.
    let mut s = Sessions::new(10, 0);
    s.report(&caller("p"), report(4), 0, 0);
    write(&mut s, 9);
    let old = MemberRecord { pod: "name-p".into(), report: report(2), joined_ms: 0, suspected: false };
    let seen = Seen { owner: Owner { lease: 7, revision: 3 }, record: Some(&old) };
    s.compare("job", &BTreeMap::from([("p", seen)]), 7, 4, true);
    assert_eq!(s.next_due().unwrap().revision, 3);
}

#[test]
fn there_is_a_limit_and_a_job_is_a_job() {
    let mut s = Sessions::new(2, 0);
    assert_eq!(s.report(&caller("a"), report(1), 0, 0), Heard::Taken);
    assert_eq!(s.report(&caller("b"), report(1), 0, 0), Heard::Taken);
    assert_eq!(s.report(&caller("c"), report(1), 0, 0), Heard::Full);
    assert_eq!(s.report(&caller("a"), report(2), 0, 0), Heard::Taken);
    assert!(s.leave("a") && !s.leave("c"));
    let due = s.next_due().unwrap();
    assert!(due.leaves);
    s.report(&caller("a"), report(3), 0, 0);
    s.done(&due, Some(Put::Theirs), 0);
    assert_eq!(s.len(), 2, "heard again while its record was removed");
    assert!(!s.next_due().unwrap().leaves);
}
