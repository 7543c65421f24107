use std::collections::BTreeSet;

use eto_engine::contract::{Framework, Readiness, WorkerPhase};
use eto_engine::job::{CleanPods, JobSpec, RestartPolicy};
use eto_engine::observe::Pod;
use eto_engine::plan::{Action, EventReason, NewPod, Plan, PlanFacts, effective_target, plan, recover};
use eto_engine::state::{Condition, ConditionKind, ConditionReason, JobState, Phase, ResizeRecord, RoundCause};

use crate::common::*;

pub(crate) fn step(job: &JobSpec, state: &JobState, pods: &[Pod]) -> Plan {
    plan(job, state, pods, &PlanFacts::default(), NOW)
}

pub(crate) fn created(plan: &Plan) -> Vec<&NewPod> {
    let mut all = Vec::new();
    for action in &plan.actions {
        if let Action::CreatePod(pod) = action {
            all.push(pod);
        }
    }
    all
}

pub(crate) fn deleted(plan: &Plan) -> Vec<&str> {
    let mut all = Vec::new();
    for action in &plan.actions {
        if let Action::DeletePod { name, .. } = action {
            all.push(name.as_str());
        }
    }
    all
}

pub(crate) fn condition(plan: &Plan, kind: ConditionKind) -> &Condition {
    plan.state.conditions.iter().find(|c| c.kind == kind).unwrap()
}

pub(crate) fn why(plan: &Plan, kind: ConditionKind) -> (bool, ConditionReason) {
    let c = condition(plan, kind);
    (c.status, c.reason)
}

#[test]
fn a_new_job_gets_its_service_and_all_of_its_pods() {
    let spec = job(1, 3, 5);
    let p = step(&spec, &JobState::default(), &[]);
    assert_eq!(p.actions[0], Action::EnsureService);
    assert_eq!(created(&p).iter().map(|n| n.index).collect::<Vec<_>>(), [0, 1, 2]);
    let env = created(&p)[1].env.variables();
    let get = |key: &str| env.iter().find(|(k, _)| k == key).unwrap().1.as_str();
    assert_eq!((get("RANK"), get("WORLD_SIZE")), ("1", "3"));
    assert_eq!(get("MASTER_ADDR"), "demo-worker-0.demo.team-a.svc");
    assert_eq!((p.state.phase, p.state.target, p.state.based_on), (Phase::Pending, 3, 3));
    assert_eq!(p.events[0].reason, EventReason::RoundStarted);
    assert_eq!(p.state.started_at, Some(NOW));
}

#[test]
fn a_missing_template_waits_and_says_so() {
    let mut spec = job(1, 3, 5);
    spec.template = None;
    let p = step(&spec, &JobState::default(), &[]);
    assert_eq!((p.actions.len(), p.state.phase, p.state.target), (0, Phase::Pending, 3));
    assert_eq!(why(&p, ConditionKind::Created), (true, ConditionReason::TemplateMissing));
    assert!(condition(&p, ConditionKind::Created).message.contains("spec.template is missing"));
    // One that is taken away later leaves what runs alone.
    let p = step(&spec, &running(&spec, 3), &pods(3));
    assert_eq!((p.actions.len(), p.state.phase), (0, Phase::Running));
}

#[test]
fn a_resize_deletes_all_pods_and_then_makes_the_new_round() {
    let spec = job(1, 4, 5);
    let mut state = running(&spec, 3);
    state.based_on = 3;
    let p = step(&spec, &state, &pods(3));
    assert_eq!(p.state.target, 4, "a change of spec.replicas re-bases the target");
    assert_eq!((deleted(&p).len(), created(&p).len()), (3, 0));
    assert_eq!((p.state.phase, why(&p, ConditionKind::Resizing).0), (Phase::Resizing, true));
    let resize = p.state.last_resize.as_ref().unwrap();
    assert_eq!((resize.from, resize.to, resize.done), (3, 4, None));
    let mut going = pods(3);
    for p in &mut going {
        p.deleting = Some(NOW);
    }
    assert_eq!(step(&spec, &p.state, &going[..1]).actions, [], "one is still there");
    let next = step(&spec, &p.state, &[]);
    assert_eq!(created(&next).iter().map(|n| (n.index, n.round, n.size)).collect::<Vec<_>>()[3], (3, 2, 4));
    // All ready: done, and measured.
    let fresh: Vec<Pod> = (0..4).map(|i| pod(i, 2, 4)).collect();
    let later = NOW.plus(secs(30));
    let done = plan(&spec, &next.state, &fresh, &PlanFacts::default(), later);
    let done = plan(&spec, &done.state, &fresh, &PlanFacts::default(), later);
    assert_eq!((done.state.phase, done.state.last_resize.unwrap().done), (Phase::Running, Some(later)));
}

#[test]
fn victims_are_named_in_order_and_never_the_master() {
    let spec = job(1, 7, 7);
    let mut state = running(&spec, 7);
    state.target = 2;
    let mut all = pods(7);
    all[0].phase = WorkerPhase::Pending;
    all[2].phase = WorkerPhase::Pending;
    all[2].ready = Readiness::Unknown;
    let sick = BTreeSet::from(["node-3".to_owned(), "node-0".to_owned()]);
    let facts = PlanFacts { sick_nodes: Some(&sick), victims: &[4, 0, 1], ..PlanFacts::default() };
    let p = plan(&spec, &state, &all, &facts, NOW);
    let named: Vec<(u32, &str)> = p.state.victims.iter().map(|v| (v.index, v.reason.as_str())).collect();
    assert_eq!(
        named,
        [
            (2, "it is pending"),
            (3, "its node is not ready"),
            (4, "the placement policy gives it up"),
            (1, "the placement policy gives it up"),
            (6, "it has the highest index"),
        ]
    );
    assert_eq!(p.state.round.as_ref().unwrap().gaps, [1, 2, 3, 4], "0 and 5 stay");
    assert_eq!(created(&step(&spec, &p.state, &[])).iter().map(|n| n.index).collect::<Vec<_>>(), [0, 5]);
    let gone = step(&spec, &p.state, &[]);
    assert!(gone.state.victims.is_empty(), "they are forgotten when they are gone");
}

#[test]
fn a_changed_template_is_a_new_round_at_once() {
    let mut spec = job(1, 2, 5);
    spec.template.as_mut().unwrap().hash = "t2".into();
    let mut state = running(&spec, 2);
    (state.not_before, state.start_attempts) = (Some(NOW.plus(secs(300))), 5);
    let p = step(&spec, &state, &pods(2));
    assert_eq!(deleted(&p).len(), 2);
    let round = p.state.round.as_ref().unwrap();
    assert_eq!((round.cause, round.template_hash.as_str()), (RoundCause::TemplateChanged, "t2"));
    assert_eq!(created(&step(&spec, &p.state, &[])).len(), 2, "no back-off: it may be the mend");
}

#[test]
fn a_failed_pod_is_charged_and_replaced_after_a_pause() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit) = (RestartPolicy::Never, 3);
    let mut state = running(&spec, 2);
    state.round.as_mut().unwrap().running_since = Some(ago(30));
    let mut all = pods(2);
    all[1].phase = WorkerPhase::Failed;
    all[1].exit_code = Some(1);
    let p = step(&spec, &state, &all);
    assert_eq!((p.state.failures, p.state.disruptions, p.state.phase), (1, 0, Phase::Restarting));
    assert_eq!(p.state.not_before, Some(NOW.plus(secs(10))));
    assert_eq!(deleted(&p).len(), 2);
    assert!(p.events.iter().any(|e| e.reason == EventReason::WorkerLost && e.message.contains("exit code 1")));
    let gone = step(&spec, &p.state, &[]);
    assert_eq!((created(&gone).len(), gone.next_look), (0, Some(NOW.plus(secs(10)))));
    let later = plan(&spec, &p.state, &[], &PlanFacts::default(), NOW.plus(secs(10)));
    assert_eq!(created(&later).len(), 2);
}

#[test]
fn more_failures_than_the_limit_end_the_job() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit) = (RestartPolicy::Never, 3);
    let mut state = running(&spec, 2);
    state.failures = 3;
    let mut all = pods(2);
    all[1].phase = WorkerPhase::Failed;
    let p = step(&spec, &state, &all);
    assert_eq!(p.state.phase, Phase::Failed);
    assert_eq!(why(&p, ConditionKind::Failed), (true, ConditionReason::BackoffLimitExceeded));
    assert_eq!(deleted(&p), ["demo-worker-0-1"], "the failed one stays for its log");
    assert_eq!(p.state.round.as_ref().unwrap().generation, 1, "no new round");
}

#[test]
fn disruptions_and_deletions_are_free() {
    let spec = job(1, 2, 5);
    let evict = |p: &mut Pod| (p.phase, p.reason) = (WorkerPhase::Failed, Some("Evicted".into()));
    let preempt = |p: &mut Pod| (p.phase, p.disrupted) = (WorkerPhase::Failed, true);
    let delete = |p: &mut Pod| p.deleting = Some(NOW);
    for change in [evict as fn(&mut Pod), preempt, delete] {
        let mut all = pods(2);
        change(&mut all[1]);
        let p = step(&spec, &running(&spec, 2), &all);
        assert_eq!((p.state.failures, p.state.disruptions, p.state.not_before), (0, 1, None));
        assert_eq!(p.state.round.as_ref().unwrap().cause, RoundCause::WorkerLost);
    }
    let p = step(&spec, &running(&spec, 2), &pods(1));
    assert_eq!((p.state.disruptions, p.state.last_generation), (1, 2), "one is gone altogether");
}

#[test]
fn containers_that_restart_in_place_are_charged_without_a_new_round() {
    let mut spec = job(1, 3, 5);
    spec.backoff_limit = 2;
    let mut all = pods(3);
    // One fault takes all down.
    for p in &mut all {
        p.restarts = 1;
    }
    let p = step(&spec, &running(&spec, 3), &all);
    assert_eq!((p.state.failures, p.actions.len(), p.state.last_generation), (1, 0, 1));
    let again = step(&spec, &p.state, &all);
    assert_eq!(again.state.failures, 1, "once");
    all[2].restarts = 3;
    let p = step(&spec, &p.state, &all);
    assert_eq!((p.state.failures, p.state.phase), (3, Phase::Failed));
}

#[test]
fn exit_codes_below_128_are_final_where_the_policy_says_so() {
    for (code, phase) in [(1, Phase::Failed), (127, Phase::Failed), (128, Phase::Restarting), (137, Phase::Restarting)]
    {
        let mut spec = job(1, 2, 5);
        spec.restart = RestartPolicy::ExitCode;
        let mut all = pods(2);
        (all[1].phase, all[1].exit_code) = (WorkerPhase::Failed, Some(code));
        let p = step(&spec, &running(&spec, 2), &all);
        assert_eq!(p.state.phase, phase, "{code}");
    }
}

#[test]
fn the_back_off_doubles_up_to_six_minutes_and_a_long_run_ends_the_row() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit) = (RestartPolicy::Never, 100);
    let mut all = pods(2);
    all[1].phase = WorkerPhase::Failed;
    for (attempts, ran, wait) in
        [(0, 30, 10), (1, 30, 20), (4, 30, 160), (5, 30, 320), (6, 30, 360), (60, 30, 360), (6, 361, 10)]
    {
        let mut state = running(&spec, 2);
        state.start_attempts = attempts;
        state.round.as_mut().unwrap().running_since = Some(ago(ran));
        let p = step(&spec, &state, &all);
        assert_eq!(p.state.not_before, Some(NOW.plus(secs(wait))), "after {attempts}, ran {ran} s");
    }
}

#[test]
fn the_end_depends_on_the_framework() {
    let done = |p: &mut Pod| (p.phase, p.exit_code) = (WorkerPhase::Succeeded, Some(0));
    for (framework, finished, phase) in [
        (Framework::PyTorch, vec![0], Phase::Succeeded),
        (Framework::Jax, vec![1], Phase::Running),
        (Framework::Custom, vec![0], Phase::Running),
        (Framework::Custom, vec![0, 1], Phase::Succeeded),
    ] {
        let mut spec = job(1, 2, 5);
        spec.framework = framework;
        let mut all = pods(2);
        for i in &finished {
            let i: usize = *i;
            done(&mut all[i]);
        }
        let p = step(&spec, &running(&spec, 2), &all);
        assert_eq!(p.state.phase, phase, "{framework:?} {finished:?}");
    }
    // A script that ends well because it was told to stop has not finished its work.
    let spec = job(1, 2, 5);
    let mut all = pods(2);
    all.iter_mut().for_each(done);
    for p in &mut all {
        p.deleting = Some(NOW);
    }
    assert_eq!(step(&spec, &running(&spec, 2), &all).state.phase, Phase::Restarting);
}

#[test]
fn what_is_cleaned_up_is_the_users_choice_and_time_deletes_the_job() {
    let mut spec = job(1, 3, 5);
    spec.ttl_after_finished = Some(secs(60));
    let mut state = running(&spec, 3);
    (state.phase, state.finished_at) = (Phase::Succeeded, Some(NOW));
    let mut all = pods(3);
    all[0].phase = WorkerPhase::Succeeded;
    for (clean, gone) in [(CleanPods::Running, 2), (CleanPods::All, 3), (CleanPods::None, 0)] {
        spec.clean_pods = clean;
        let p = step(&spec, &state, &all);
        assert_eq!((deleted(&p).len(), p.next_look), (gone, Some(NOW.plus(secs(60)))));
    }
    let p = plan(&spec, &state, &[], &PlanFacts::default(), NOW.plus(secs(60)));
    assert_eq!(p.actions, [Action::DeleteJob]);
    // Terminal is terminal.
    spec.replicas = 5;
    spec.suspend = true;
    assert_eq!(step(&spec, &state, &all).state, state);
}

#[test]
fn an_active_deadline_ends_the_job() {
    let mut spec = job(1, 2, 5);
    spec.active_deadline = Some(secs(50_001));
    let p = step(&spec, &running(&spec, 2), &pods(2));
    assert_eq!((p.state.phase, p.next_look), (Phase::Running, Some(NOW.plus(secs(1)))));
    let p = plan(&spec, &p.state, &pods(2), &PlanFacts::default(), NOW.plus(secs(1)));
    assert_eq!(why(&p, ConditionKind::Failed), (true, ConditionReason::DeadlineExceeded));
    assert_eq!(deleted(&p).len(), 2);
}

#[test]
fn suspension_deletes_the_pods_and_keeps_the_target() {
    let mut spec = job(1, 2, 5);
    spec.suspend = true;
    let mut state = running(&spec, 4);
    state.based_on = 2;
    let p = step(&spec, &state, &pods(4));
    assert_eq!((deleted(&p).len(), p.state.phase, p.state.target), (4, Phase::Suspended, 4));
    assert_eq!(why(&p, ConditionKind::Suspended), (true, ConditionReason::SuspendedByUser));
    assert_eq!(
        step(&spec, &p.state, &[]),
        Plan { events: vec![], actions: vec![], next_look: None, state: p.state.clone(), wants_image: false }
    );
    spec.suspend = false;
    let p = step(&spec, &p.state, &[]);
    assert_eq!(created(&p).iter().map(|n| (n.round, n.size)).next(), Some((2, 4)));
    assert_eq!(p.state.round.as_ref().unwrap().cause, RoundCause::Resumed);
    assert_eq!(p.state.started_at, Some(NOW), "the deadline counts anew");
}

#[test]
fn work_that_is_done_is_not_suspended() {
    let mut spec = job(1, 2, 5);
    spec.suspend = true;
    let mut all = pods(2);
    all[0].phase = WorkerPhase::Succeeded;
    let p = step(&spec, &running(&spec, 2), &all);
    assert_eq!((p.state.phase, deleted(&p)), (Phase::Succeeded, vec!["demo-worker-1-1"]));
    // One that ended because it was told to go has not done its work.
    all[0].deleting = Some(NOW);
    assert_eq!(step(&spec, &running(&spec, 2), &all).state.phase, Phase::Suspended);
}

#[test]
fn a_lost_status_is_rebuilt_from_the_live_pods() {
    let mut spec = job(1, 2, 8);
    spec.scaling = Some(scaling(vec![cpu(50)], false));
    let all: Vec<Pod> = (0..6).map(|i| pod(i, 9, 6)).collect();
    let state = recover(&spec, &all, None, NOW);
    assert_eq!((state.target, state.last_generation), (6, 9));
    let p = step(&spec, &state, &all);
    let p = step(&spec, &p.state, &all);
    assert_eq!((p.actions.len(), p.state.phase, p.state.target), (0, Phase::Running, 6));
    // One is missing: it is made again with the same size.
    let p = step(&spec, &state, &all[..5]);
    assert_eq!(created(&p).iter().map(|n| (n.index, n.size)).collect::<Vec<_>>(), [(5, 6)]);
    assert_eq!(recover(&spec, &[], None, NOW).target, 0, "nothing is known: a new job");
    assert_eq!(effective_target(&spec, &recover(&spec, &[], None, NOW)), 2);
}

#[test]
fn since_moves_only_when_a_status_changes() {
    let spec = job(1, 2, 5);
    let p = step(&spec, &running(&spec, 2), &pods(2));
    let later = plan(&spec, &p.state, &pods(2), &PlanFacts::default(), NOW.plus(secs(60)));
    assert_eq!(later.state, p.state, "nothing to write where nothing changed");
}

#[test]
fn a_resize_taken_back_before_its_round_is_over() {
    let mut spec = job(1, 3, 5);
    let mut state = running(&spec, 3);
    spec.replicas = 5;
    // The target moves, and is moved back before the plan begins a round.
    let record = |from, to| Some(ResizeRecord::new(from, to, NOW));
    (state.target, state.based_on, state.last_resize) = (5, 5, record(3, 5));
    spec.replicas = 3;
    let p = step(&spec, &state, &pods(3));
    assert_eq!((p.state.target, p.actions.len(), p.state.last_generation), (3, 0, 1));
    assert_eq!(p.state.last_resize.unwrap().done, Some(NOW), "nothing is in flight");
}

#[test]
fn a_round_that_runs_for_a_while_ends_the_row_of_failures() {
    let spec = job(1, 2, 5);
    let mut state = running(&spec, 2);
    state.start_attempts = 3;
    state.round.as_mut().unwrap().running_since = Some(ago(359));
    let p = step(&spec, &state, &pods(2));
    assert_eq!((p.state.start_attempts, p.next_look), (3, Some(NOW.plus(secs(1)))));
    let p = plan(&spec, &p.state, &pods(2), &PlanFacts::default(), NOW.plus(secs(1)));
    assert_eq!(p.state.start_attempts, 0);
}
