//! Templates without a command: the image's is read first, and where it can't be had pods are recreated.

use eto_engine::job::JobSpec;
use eto_engine::plan::{Action, ImageCommand, Plan};
use eto_engine::state::{ConditionKind, ConditionReason, RoundMode};

use super::world::AgentWorld;
use crate::common::{job, pods, running};

const PENDING: ImageCommand<'static> = ImageCommand::Pending { last: None };
const FAILED: ImageCommand<'static> = ImageCommand::Failed("no route to registry.example");

fn without_command() -> JobSpec {
    let mut spec = job(1, 2, 5);
    spec.template.as_mut().unwrap().command = false;
    spec
}

fn world(image: ImageCommand<'static>) -> AgentWorld {
    let mut world = AgentWorld::new(without_command());
    world.image = image;
    world
}

fn told(plan: &Plan) -> (bool, ConditionReason, &str) {
    let condition = plan.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap();
    (condition.status, condition.reason, &condition.message)
}

fn mode(plan: &Plan) -> Option<RoundMode> {
    plan.state.round.as_ref().map(eto_engine::state::RoundState::mode)
}

fn made(plan: &Plan) -> Vec<RoundMode> {
    let new = |a: &Action| if let Action::CreatePod(new) = a { Some(new.mode) } else { None };
    plan.actions.iter().filter_map(new).collect()
}

#[test]
fn a_job_waits_for_its_images_command_and_then_has_an_agent() {
    let mut world = world(PENDING);
    let p = world.plan(&world.state);
    assert_eq!((p.wants_image, p.actions.len(), mode(&p)), (true, 0, None));
    assert_eq!((told(&p).0, told(&p).1), (false, ConditionReason::ReadingImage));
    world.image = ImageCommand::Known;
    world.go(20);
    world.check_settled();
    assert_eq!(told(&world.plan(&world.state)).1, ConditionReason::AgentDrivesRounds);
}

#[test]
fn where_the_command_is_not_to_be_had_pods_are_recreated_and_the_reason_is_told() {
    let world = world(FAILED);
    let p = world.plan(&world.state);
    assert_eq!((mode(&p), made(&p)), (Some(RoundMode::Recreate), vec![RoundMode::Recreate; 2]));
    let (status, reason, message) = told(&p);
    assert_eq!((status, reason), (false, ConditionReason::ImageNotRead));
    assert!(message.contains("no route to registry.example"), "{message}");
    assert!(!p.wants_image, "it is tried again for the next round, not for this one");
}

#[test]
fn a_round_by_recreation_asks_again_before_the_next_one() {
    let mut world = world(FAILED);
    let first = world.plan(&world.state);
    // It runs, and it is time to try again: nothing needs it.
    world.image = ImageCommand::Pending { last: Some("no route to registry.example") };
    world.pods = pods(2);
    let p = world.plan(&first.state);
    assert_eq!((p.wants_image, told(&p)), (false, told(&first)));
    // The operator is another one, which has not tried yet.
    world.image = PENDING;
    let p = world.plan(&first.state);
    assert_eq!((p.wants_image, told(&p)), (false, told(&first)));
    // A growth waits for the answer, and what runs goes on.
    world.job.replicas = 3;
    let waits = world.plan(&first.state);
    assert_eq!((waits.wants_image, mode(&waits), waits.state.target), (true, Some(RoundMode::Recreate), 3));
    assert!(!waits.actions.iter().any(|a| matches!(a, Action::DeletePod { .. })), "{:?}", waits.actions);
    world.image = ImageCommand::Known;
    let p = world.plan(&waits.state);
    assert_eq!(mode(&p), Some(RoundMode::Agent));
}

#[test]
fn a_lost_worker_is_not_made_to_wait_for_an_image() {
    let mut world = world(PENDING);
    world.pods = pods(1);
    let p = world.plan(&running(&world.job, 2));
    assert_eq!((mode(&p), p.wants_image), (Some(RoundMode::Recreate), true));
    assert_eq!(p.state.round.as_ref().unwrap().generation, 2);
}

#[test]
fn new_pods_of_a_running_round_wait_while_the_others_train() {
    let mut world = world(ImageCommand::Known);
    world.go(20);
    let generation = world.generation();
    // Its registry is away.
    world.job.replicas = 3;
    for image in [PENDING, FAILED] {
        world.image = image;
        world.go(3);
        let p = world.plan(&world.state);
        assert_eq!((p.wants_image, made(&p).len(), world.generation()), (true, 0, generation));
        assert!(told(&p).0);
    }
    assert!(told(&world.plan(&world.state)).2.contains("new pods wait"));
    world.image = ImageCommand::Known;
    world.go(20);
    world.check_settled();
    assert_eq!(world.members().len(), 3);
}

#[test]
fn another_template_without_a_command_is_asked_for_before_anything_stops() {
    let mut spec = without_command();
    spec.template.as_mut().unwrap().command = true;
    let mut world = AgentWorld::running(spec);
    let generation = world.generation();
    let template = world.job.template.as_mut().unwrap();
    (template.hash, template.command) = ("t2".into(), false);
    world.image = PENDING;
    world.go(5);
    assert_eq!(world.generation(), generation, "training goes on");
    let p = world.plan(&world.state);
    assert_eq!((p.wants_image, told(&p).1), (true, ConditionReason::ReadingImage));
    world.image = FAILED;
    let p = world.plan(&world.state);
    assert_eq!((mode(&p), told(&p).1), (Some(RoundMode::Recreate), ConditionReason::ImageNotRead));
    world.image = ImageCommand::Known;
    world.go(30);
    world.check_settled();
    assert!(world.pods.iter().all(|p| p.template_hash == "t2"));
}

#[test]
fn a_gang_whose_command_is_lost_before_it_is_whole_is_made_without_agents() {
    let mut world = world(ImageCommand::Known);
    world.room = 1;
    world.go(3);
    assert_eq!(mode(&world.plan(&world.state)), Some(RoundMode::Agent));
    // All pods are there: an operator that knows nothing of the image needs nothing of it.
    world.image = FAILED;
    assert_eq!(mode(&world.plan(&world.state)), Some(RoundMode::Agent));
    world.pods.pop();
    assert_eq!(mode(&world.plan(&world.state)), Some(RoundMode::Recreate));
}

#[test]
fn an_operator_that_reads_no_images_any_more_recreates_pods_when_one_is_needed() {
    let mut world = world(ImageCommand::Known);
    world.go(20);
    world.image = ImageCommand::Unread;
    let generation = world.generation();
    world.go(5);
    assert_eq!(world.generation(), generation, "nothing is needed");
    world.job.replicas = 3;
    let p = world.plan(&world.state);
    assert_eq!((mode(&p), told(&p).1), (Some(RoundMode::Recreate), ConditionReason::NoCommand));
}
