//! The machine's rules, one by one.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{Candidate, FrameworkKind, Member, Ports, Round};

pub(super) const ME: &str = "me";

pub(super) fn assignment(generation: u64, order: Order, uids: &[&str]) -> Assignment {
    let members = (0u32..).zip(uids).map(|(index, uid)| Candidate {
        member: Member { index, address: format!("10.0.0.{index}"), uid: Some((*uid).to_owned()), processes: 1 },
        healthy_since_ms: None,
    });
    let round = Round::plan("ns/j", "u", generation, members.collect(), Ports::default()).unwrap();
    Assignment::new(round, order, FrameworkKind::PyTorch, 30_000)
}

pub(super) fn agent() -> Agent {
    Agent::new(Identity { pod_uid: ME.to_owned(), stop_grace_ms: 28_000, ..Identity::default() })
}

fn told(a: &mut Agent, generation: u64, order: Order, uids: &[&str], now: u64) -> Vec<Command> {
    a.step(Event::Assigned(Box::new(assignment(generation, order, uids))), now)
}

fn ended(a: &mut Agent, generation: u64, exit: Exit, now: u64) -> Vec<Command> {
    let out = a.step(Event::ProcessEnded { generation, exit, main: true, left: 0 }, now);
    assert!(out.is_empty() || out == [Command::Kill], "what is left behind is killed, if nobody asked it to stop");
    a.step(Event::GroupGone { generation }, now)
}

fn started(commands: &[Command]) -> Option<(u64, usize)> {
    commands.iter().find_map(|c| match c {
        Command::Start(launch) => Some((launch.generation(), launch.rank)),
        _ => None,
    })
}

fn running(generation: u64) -> Agent {
    let mut a = agent();
    assert_eq!(told(&mut a, generation, Order::Stop, &["x", ME], 0), [Command::Report]);
    assert_eq!(a.state(), MemberState::Idle);
    assert_eq!(started(&told(&mut a, generation, Order::Run, &["x", ME], 1)), Some((generation, 1)));
    a
}

#[test]
fn a_new_round_stops_the_old_processes_first() {
    let mut a = running(3);
    assert!(a.is_ready());
    assert_eq!(told(&mut a, 4, Order::Stop, &[ME], 10), [Command::Terminate, Command::Report]);
    assert_eq!((a.report().generation, a.state()), (4, MemberState::Running { generation: 3 }));
    assert_eq!((a.next_deadline(), a.is_ready()), (Some(30_010), false));
    assert_eq!(started(&told(&mut a, 4, Order::Run, &[ME], 20)), None, "the old ones are there still");
    let out = ended(&mut a, 3, Exit::Signal(15), 30);
    assert_eq!((started(&out), a.state()), (Some((4, 0)), MemberState::Running { generation: 4 }));
    assert_eq!(a.report().checkpoint, None, "death by SIGTERM is no checkpoint");
}

/// A shell that the signal ended is no failure beside the script below it that has written its checkpoint.
#[test]
fn death_by_the_container_s_own_stop_signal_is_being_asked_too() {
    for (stop_signal, drained) in [(2, true), (0, false)] {
        let mut a = Agent::new(Identity { pod_uid: ME.to_owned(), stop_signal, ..Identity::default() });
        told(&mut a, 1, Order::Run, &[ME], 0);
        told(&mut a, 2, Order::Stop, &[ME], 1);
        a.step(Event::ProcessEnded { generation: 1, exit: Exit::Signal(2), main: true, left: 0 }, 2);
        a.step(Event::ProcessEnded { generation: 1, exit: Exit::Code(143), main: false, left: 0 }, 3);
        a.step(Event::GroupGone { generation: 1 }, 4);
        assert_eq!(a.report().checkpoint.is_some(), drained, "stop signal {stop_signal}");
    }
}

#[test]
fn a_run_without_a_stop_stops_first_too() {
    let mut a = running(3);
    assert_eq!(told(&mut a, 5, Order::Run, &[ME], 10), [Command::Terminate, Command::Report]);
    assert_eq!(started(&ended(&mut a, 3, Exit::Code(0), 20)), Some((5, 0)));
}

#[test]
fn what_swallows_sigterm_is_killed_at_the_deadline_and_again() {
    let mut a = running(1);
    told(&mut a, 2, Order::Stop, &[ME], 1_000);
    assert_eq!(a.step(Event::Tick, 30_999), []);
    assert_eq!(a.step(Event::Tick, 31_000), [Command::Kill]);
    assert_eq!(a.step(Event::Tick, 31_500), []);
    assert_eq!(a.step(Event::Tick, a.next_deadline().unwrap()), [Command::Kill]);
    ended(&mut a, 1, Exit::Signal(9), 33_000);
    assert_eq!((a.state(), a.next_deadline()), (MemberState::Idle, None));
}

#[test]
fn a_later_round_can_only_bring_the_end_nearer() {
    let mut a = running(1);
    told(&mut a, 2, Order::Stop, &[ME], 0);
    let mut quick = assignment(3, Order::Stop, &[ME]);
    quick.grace_ms = LOSS_GRACE_MS;
    assert_eq!(a.step(Event::Assigned(Box::new(quick)), 100), [Command::Report], "it was asked to stop already");
    assert_eq!(a.next_deadline(), Some(100 + LOSS_GRACE_MS));
    told(&mut a, 4, Order::Stop, &[ME], 200);
    assert_eq!(a.next_deadline(), Some(100 + LOSS_GRACE_MS));
}

#[test]
fn stale_rounds_orders_and_conflicts_are_refused() {
    let mut a = running(7);
    for (generation, order) in [(6, Order::Run), (6, Order::End), (7, Order::Stop), (0, Order::Run)] {
        let out = told(&mut a, generation, order, &["x", ME], 5);
        assert!(matches!(out.as_slice(), [Command::Refuse(Refusal::Round(_))]), "{out:?}");
    }
    assert_eq!(told(&mut a, 7, Order::Run, &["x", ME], 6), [], "told again: nothing to do");
    let other = Refusal::Round(Refused::OtherRound { generation: 7 });
    assert_eq!(told(&mut a, 7, Order::Run, &[ME], 6), [Command::Refuse(other)]);
    assert_eq!((a.generation(), a.is_ready()), (7, true));
    assert!(matches!(told(&mut agent(), 0, Order::Run, &[ME], 0)[..], [Command::Refuse(_)]));
}

#[test]
fn a_stop_told_again_with_less_grace_brings_the_end_nearer() {
    let mut a = running(1);
    told(&mut a, 2, Order::Stop, &[ME], 0);
    let mut hurry = assignment(2, Order::Stop, &[ME]);
    hurry.grace_ms = 1_000;
    assert_eq!(a.step(Event::Assigned(Box::new(hurry)), 100), [Command::Report]);
    assert_eq!(a.next_deadline(), Some(1_100));
}

#[test]
fn who_is_not_in_the_round_stays_stopped() {
    let mut a = running(1);
    told(&mut a, 2, Order::Stop, &["x"], 0);
    ended(&mut a, 1, Exit::Code(143), 1);
    assert_eq!(told(&mut a, 2, Order::Run, &["x"], 2), [Command::Report]);
    assert_eq!(a.state(), MemberState::Idle);
}

#[test]
fn success_ends_the_agent_and_failure_waits_for_the_next_round() {
    let mut a = running(1);
    assert_eq!(ended(&mut a, 1, Exit::Code(0), 9), [Command::Report, Command::End { code: 0 }]);
    assert_eq!(a.state(), MemberState::Exited { generation: 1, code: 0 });
    assert_eq!(told(&mut a, 2, Order::Run, &[ME], 10), [Command::Refuse(Refusal::Leaving)]);

    let mut a = running(1);
    assert_eq!(ended(&mut a, 1, Exit::Signal(11), 9), [Command::Report]);
    assert_eq!(a.state(), MemberState::Exited { generation: 1, code: 139 });
    assert_eq!(told(&mut a, 1, Order::Run, &["x", ME], 10), [], "a generation is started once");
    assert_eq!(told(&mut a, 2, Order::Stop, &["x", ME], 11), [Command::Report]);
    assert_eq!((a.report().generation, a.state()), (2, MemberState::Exited { generation: 1, code: 139 }));
    assert_eq!(started(&told(&mut a, 2, Order::Run, &["x", ME], 12)), Some((2, 1)));
}

#[test]
fn the_end_of_the_job_ends_the_agent_with_the_last_code() {
    let mut a = running(1);
    assert_eq!(told(&mut a, 1, Order::End, &["x", ME], 5), [Command::Terminate, Command::Report]);
    assert_eq!(ended(&mut a, 1, Exit::Code(143), 6), [Command::Report, Command::End { code: 143 }]);
    let mut idle = agent();
    assert_eq!(told(&mut idle, 3, Order::End, &["x"], 5), [Command::Report, Command::End { code: 0 }]);
}

#[test]
fn sigterm_of_the_pod_stops_with_its_own_grace_and_ends() {
    let mut a = running(2);
    assert_eq!(a.step(Event::Signalled, 100), [Command::Terminate, Command::Report]);
    assert_eq!((a.next_deadline(), a.report().leaving), (Some(28_100), true));
    assert_eq!(a.step(Event::Signalled, 200), []);
    assert_eq!(started(&told(&mut a, 3, Order::Run, &[ME], 300)), None);
    assert_eq!(ended(&mut a, 2, Exit::Code(3), 400), [Command::Report, Command::End { code: 3 }]);
    assert_eq!(a.state(), MemberState::Exited { generation: 2, code: 3 });
    assert_eq!(agent().step(Event::Signalled, 0), [Command::Report, Command::End { code: 143 }]);
}

#[test]
fn the_time_asked_for_stands_until_a_later_step() {
    let mut a = running(4);
    let mut tell = |step, next_ms| {
        a.step(Event::ProgressTold(Progress { step, next_ms, ..Progress::default() }), 8);
        a.report().progress.and_then(|p| p.next_ms)
    };
    assert_eq!(tell(11, None), None);
    assert_eq!(tell(12, Some(90_000)), Some(90_000));
    assert_eq!(tell(12, None), Some(90_000), "another process of the pod, which waits for the first");
    assert_eq!(tell(12, Some(0)), Some(0), "taken back");
    assert_eq!((tell(12, Some(90_000)), tell(13, None)), (Some(90_000), None));
}

#[test]
fn a_checkpoint_is_told_or_an_exit_code_143_of_the_script_after_it_was_asked() {
    let mut a = running(4);
    assert_eq!(
        a.step(Event::CheckpointTold { generation: Some(3), step: 9 }, 5),
        [Command::Refuse(Refusal::OtherRound)]
    );
    assert_eq!(a.step(Event::CheckpointTold { generation: None, step: 10 }, 6), [Command::Report]);
    assert_eq!(a.step(Event::CheckpointTold { generation: Some(4), step: 10 }, 7), []);
    let progress = Progress { step: 12, ..Progress::default() };
    assert_eq!(a.step(Event::ProgressTold(progress), 8), [Command::Report], "the first of a round is news");
    assert_eq!(a.step(Event::ProgressTold(progress), 9), []);
    told(&mut a, 5, Order::Stop, &[ME], 20);
    ended(&mut a, 4, Exit::Code(143), 30);
    assert_eq!(a.report().checkpoint, Some(Checkpoint { generation: 4, step: 12, at_ms: 30 }));

    let mut a = running(4);
    a.step(Event::ProgressTold(Progress { step: 12, ..Progress::default() }), 8);
    told(&mut a, 5, Order::Stop, &[ME], 20);
    a.step(Event::CheckpointTold { generation: None, step: 11 }, 25);
    ended(&mut a, 4, Exit::Code(143), 30);
    assert_eq!(a.report().checkpoint.map(|c| c.step), Some(11), "the script knows better than the last progress");

    let mut a = running(4);
    ended(&mut a, 4, Exit::Code(143), 30);
    assert_eq!(a.report().checkpoint, None, "nobody asked it to stop");
}

#[test]
fn a_shell_that_dies_before_its_script_hides_no_checkpoint() {
    let mut a = running(4);
    told(&mut a, 5, Order::Stop, &[ME], 20);
    a.step(Event::ProcessEnded { generation: 4, exit: Exit::Signal(15), main: true, left: 0 }, 21);
    a.step(Event::ProcessEnded { generation: 4, exit: Exit::Code(143), main: false, left: 0 }, 25);
    a.step(Event::GroupGone { generation: 4 }, 26);
    assert_eq!(a.report().checkpoint.map(|c| c.generation), Some(4));
}

#[test]
fn one_of_several_processes_that_fails_takes_the_others_with_it() {
    let mut a = running(1);
    let failed = Event::ProcessEnded { generation: 1, exit: Exit::Code(7), main: true, left: 3 };
    assert_eq!(a.step(failed, 100), [Command::Terminate]);
    assert_eq!(a.next_deadline(), Some(100 + LOSS_GRACE_MS));
    assert_eq!(a.step(Event::Tick, 100 + LOSS_GRACE_MS), [Command::Kill]);
    assert_eq!(ended(&mut a, 1, Exit::Signal(9), 6_000), [Command::Report]);
    assert_eq!(a.state(), MemberState::Exited { generation: 1, code: 7 });
}

#[test]
fn an_end_by_itself_stands_though_a_round_comes_before_all_is_gone() {
    let mut a = running(1);
    let over = Event::ProcessEnded { generation: 1, exit: Exit::Code(0), main: true, left: 0 };
    assert_eq!(a.step(over, 100), [Command::Kill], "a child it left behind");
    assert_eq!(told(&mut a, 2, Order::Stop, &["x", ME], 101), [Command::Report]);
    let out = a.step(Event::GroupGone { generation: 1 }, 102);
    assert_eq!(out, [Command::Report, Command::End { code: 0 }]);
}

#[test]
fn an_agent_started_again_in_its_pod_does_not_join_the_round_that_stands() {
    let mut a = Agent::new(Identity { pod_uid: ME.to_owned(), lost_generation: Some(5), ..Identity::default() });
    assert_eq!((a.report().generation, a.state()), (0, MemberState::Exited { generation: 5, code: 137 }));
    assert_eq!(told(&mut a, 5, Order::Run, &["x", ME], 1), [Command::Report]);
    assert_eq!(a.state(), MemberState::Exited { generation: 5, code: 137 });
    told(&mut a, 6, Order::Stop, &["x", ME], 2);
    assert_eq!(started(&told(&mut a, 6, Order::Run, &["x", ME], 3)), Some((6, 1)));
}

/// A round of the run that began with generation 3.
fn of_run(generation: u64, order: Order, uids: &[&str]) -> Event {
    let native = Some(crate::Native { run: 3, min: 1, max: 4, alone: false });
    Event::Assigned(Box::new(Assignment { native, ..assignment(generation, order, uids) }))
}

fn running_natively() -> Agent {
    let mut a = agent();
    assert_eq!(started(&a.step(of_run(3, Order::Run, &["x", ME]), 1)), Some((3, 1)));
    a
}

#[test]
fn in_the_next_round_of_a_run_a_member_goes_on() {
    let mut a = running_natively();
    let out = a.step(of_run(4, Order::Run, &["x", ME, "y"]), 10);
    assert_eq!(out, [Command::GoOn { generation: 4 }, Command::Report]);
    assert_eq!((a.state(), a.is_ready(), a.next_deadline()), (MemberState::Running { generation: 4 }, true, None));
    assert_eq!((a.round_of_processes(), a.running_round()), (3, Some(3)), "as the processes know it");
    // What they tell counts for the round in force, by whichever number they know.
    for (told, step) in [(None, 1), (Some(3), 2), (Some(4), 3)] {
        assert_eq!(a.step(Event::CheckpointTold { generation: told, step }, 20), [Command::Report]);
        assert_eq!(a.report().checkpoint.map(|c| (c.generation, c.step)), Some((4, step)));
    }
    let stale = a.step(Event::CheckpointTold { generation: Some(2), step: 9 }, 20);
    assert_eq!(stale, [Command::Refuse(Refusal::OtherRound)]);
    // Its end is that of the round in force, though it was started for another.
    let out = ended(&mut a, 3, Exit::Code(1), 30);
    assert_eq!((out, a.state()), (vec![Command::Report], MemberState::Exited { generation: 4, code: 1 }));
    assert_eq!(started(&a.step(of_run(5, Order::Run, &["x", ME]), 40)), Some((5, 1)), "and it can join again");
}

#[test]
fn who_is_left_out_of_the_next_round_of_a_run_stops() {
    let mut a = running_natively();
    assert_eq!(a.step(of_run(4, Order::Run, &["x"]), 10), [Command::Terminate, Command::Report]);
    assert_eq!((a.state(), a.next_deadline()), (MemberState::Running { generation: 3 }, Some(30_010)));
    // Taken in again before it has stopped, it stops all the same, and starts after that.
    assert_eq!(a.step(of_run(5, Order::Run, &["x", ME]), 20), [Command::Report]);
    assert_eq!(started(&ended(&mut a, 3, Exit::Code(1), 30)), Some((5, 1)));
}

#[test]
fn another_run_a_stop_and_the_end_stop_what_runs() {
    let other = Some(crate::Native { run: 4, min: 1, max: 4, alone: false });
    let other = Assignment { native: other, ..assignment(4, Order::Run, &["x", ME]) };
    for next in [other, assignment(4, Order::Run, &["x", ME])] {
        let out = running_natively().step(Event::Assigned(Box::new(next)), 10);
        assert_eq!(out, [Command::Terminate, Command::Report]);
    }
    for order in [Order::Stop, Order::End] {
        let out = running_natively().step(of_run(4, order, &["x", ME]), 10);
        assert_eq!(out, [Command::Terminate, Command::Report], "{order:?}");
    }
}

#[test]
fn a_run_that_changes_within_a_generation_is_refused() {
    let mut a = running_natively();
    let out = told(&mut a, 3, Order::Run, &["x", ME], 10);
    assert!(matches!(out.as_slice(), [Command::Refuse(Refusal::Round(_))]), "{out:?}");
}

#[test]
fn who_is_started_alone_starts_with_the_rank_of_its_index_or_not_at_all() {
    let of = |generation: u64, ranks: &[u32]| {
        let native = Some(crate::Native { run: 3, min: 1, max: 4, alone: true });
        let told = assignment(generation, Order::Run, &["x", ME]);
        Event::Assigned(Box::new(Assignment { native, ranks: ranks.to_vec(), ..told }))
    };
    let mut a = agent();
    assert_eq!(started(&a.step(of(3, &[0, 1]), 1)), Some((3, 1)));
    // It fails by itself, and the others went on without one before it.
    ended(&mut a, 3, Exit::Code(1), 2);
    assert_eq!(started(&a.step(of(4, &[0, 2, 1]), 3)), None);
    assert_eq!((a.report().generation, a.state()), (4, MemberState::Exited { generation: 3, code: 1 }));
    assert_eq!(started(&a.step(of(5, &[0, 1]), 4)), Some((5, 1)));
}
