//! `elasticity.restartScope`, `failureWindowSeconds` and `elasticity.failureLimits`.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_engine::job::RestartScope;
use eto_engine::state::LossClass;

use super::int;
use crate::SpecProblems;

/// A year.
const LONGEST: i64 = 31_536_000;

/// With any framework the scripts that go on without one of their members are only those that say so: collectives don't, and
/// TensorFlow's chief and servers know workers by addresses that a replacement has not.
pub(super) fn scope(asked: Option<eto_api::RestartScope>) -> RestartScope {
    match asked {
        None | Some(eto_api::RestartScope::Group) => RestartScope::Group,
        Some(eto_api::RestartScope::Pod) => RestartScope::Pod,
    }
}

pub(super) fn window(asked: Option<i64>, problems: &mut SpecProblems) -> Option<Duration> {
    let seconds = int("spec.elasticity.failureWindowSeconds", asked?, 60, LONGEST, problems)?;
    Some(Duration::from_secs(seconds.into()))
}

pub(super) fn limits(asked: Option<&eto_api::FailureLimits>, problems: &mut SpecProblems) -> BTreeMap<LossClass, u32> {
    let Some(l) = asked else { return BTreeMap::new() };
    let all = [
        (LossClass::ProcessFailed, "processFailed", l.process_failed),
        (LossClass::PodFailed, "podFailed", l.pod_failed),
        (LossClass::ContainerRestarted, "containerRestarted", l.container_restarted),
        (LossClass::OutOfMemory, "outOfMemory", l.out_of_memory),
        (LossClass::NotStarted, "notStarted", l.not_started),
        (LossClass::Hung, "hung", l.hung),
    ];
    let read = |(class, name, limit): (LossClass, &str, Option<i64>)| {
        let path = format!("spec.elasticity.failureLimits.{name}");
        Some((class, int(&path, limit?, 0, i64::from(i32::MAX), problems)?))
    };
    all.into_iter().filter_map(read).collect()
}
