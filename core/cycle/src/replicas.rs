//! `spec.replicaTypes`: members of a job that are something else than workers.

use std::collections::BTreeSet;

use eto_api::{ElasticJob, FrameworkType, labels};
use eto_engine::contract::Framework;
use eto_engine::job::{CHIEF, ReplicaType, ReplicaTypes, WORKER};

use crate::SpecProblems;
use crate::spec::{self, MAX_SIZE_FIELD};

const PATH: &str = "spec.replicaTypes";
/// What TensorFlow knows beside workers.
const TENSORFLOW: [&str; 3] = [CHIEF, "ps", "evaluator"];
/// Longest name: it is a label's value and a part of pod names.
const MAX_NAME: usize = 63;

/// The types of a job as they are written; a number that can't be one counts as 1.
pub(crate) fn types(job: &ElasticJob) -> ReplicaTypes {
    let of = |t: &eto_api::ReplicaType| ReplicaType {
        name: t.name.clone(),
        replicas: t.replicas.and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1),
    };
    ReplicaTypes(job.spec.replica_types.iter().flatten().map(of).collect())
}

/// The types of a job whose smallest size is `min`.
pub(crate) fn checked(job: &ElasticJob, min: u32, problems: &mut SpecProblems) -> ReplicaTypes {
    let types = types(job);
    if types.is_empty() {
        return types;
    }
    let framework = spec::framework(job.spec.framework_type);
    if !matches!(job.spec.framework_type, Some(FrameworkType::TensorFlow | FrameworkType::Custom)) {
        let why = "needs frameworkType TensorFlow or Custom: members of other frameworks are all workers";
        problems.add(PATH, why);
    }
    if job.spec.master.is_some() {
        problems.add("spec.master", "can't be set beside replicaTypes: give the first type a template of its own");
    }
    if job.spec.elasticity.as_ref().is_some_and(|e| e.global_batch_size.is_some()) {
        let why = "can't be set beside replicaTypes: which of the members take samples is the script's affair";
        problems.add("spec.elasticity.globalBatchSize", why);
    }
    let mut known = BTreeSet::new();
    for (i, of) in job.spec.replica_types.iter().flatten().enumerate() {
        let name = of.name.as_str();
        if let Some(why) = wrong_name(name, framework, &mut known) {
            problems.add(format!("{PATH}[{i}].name"), why);
        }
        let replicas = of.replicas.unwrap_or(1);
        if !(1..=MAX_SIZE_FIELD).contains(&replicas) {
            problems
                .add(format!("{PATH}[{i}].replicas"), format!("is {replicas}, and must be from 1 to {MAX_SIZE_FIELD}"));
        } else if name == CHIEF && replicas != 1 {
            problems.add(format!("{PATH}[{i}].replicas"), "must be 1: a job has one chief");
        }
    }
    let count = types.count();
    if count >= min {
        let why = format!(
            "hold {count} members, and the smallest size of the job is {min}: they count towards it, and one worker at \
             least must be left; raise minReplicas"
        );
        problems.add(PATH, why);
    }
    types
}

fn wrong_name<'a>(name: &'a str, framework: Framework, known: &mut BTreeSet<&'a str>) -> Option<String> {
    if [WORKER, labels::ROLE_MASTER].contains(&name) {
        return Some(format!("must not be {name}: members without a type are workers, and index 0 has the first type"));
    }
    if name.len() > MAX_NAME || !spec::dns_label(name) {
        let form = "begin with a letter and hold lower-case letters, digits and '-' only";
        return Some(format!("must {form}, at most {MAX_NAME}"));
    }
    if framework == Framework::TensorFlow && !TENSORFLOW.contains(&name) {
        return Some("must be chief, ps or evaluator: TensorFlow knows no other".to_owned());
    }
    (!known.insert(name)).then(|| format!("{name} is there twice; add up its replicas"))
}
