//! The pod template of a job: read from JSON, its short forms merged in.

use std::collections::BTreeSet;

use eto_api::{ElasticJob, ReplicaType, labels};
use k8s_openapi::api::core::v1::{
    Affinity, Container, EnvVar, PodSpec, PodTemplateSpec, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{SpecProblems, replicas, resources};

/// Which pod of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role<'a> {
    /// The worker with index 0.
    Master,
    Worker,
    /// One of the `at`-th of the job's `replicaTypes`.
    Other {
        at: usize,
        of: &'a ReplicaType,
    },
}

impl<'a> Role<'a> {
    /// The role of the member with this index, and its place within it: among those of its type, in the job for workers.
    pub fn of(job: &'a ElasticJob, index: u32) -> (Role<'a>, u32) {
        let (types, written) = (replicas::types(job), job.spec.replica_types.as_deref().unwrap_or_default());
        match types.place(index) {
            Some((at, within)) => written.get(at).map_or((Role::Worker, index), |of| (Role::Other { at, of }, within)),
            None if index == 0 => (Role::Master, 0),
            None => (Role::Worker, index),
        }
    }

    /// All roles that pods of this job have: the worker's first.
    pub fn all(job: &'a ElasticJob) -> Vec<Role<'a>> {
        let others = job.spec.replica_types.iter().flatten().enumerate().map(|(at, of)| Role::Other { at, of });
        let master = Some(Role::Master).filter(|_| replicas::types(job).is_empty());
        std::iter::once(Role::Worker).chain(master).chain(others).collect()
    }

    /// As in labels and pod names.
    pub fn name(self) -> &'a str {
        match self {
            Role::Master => labels::ROLE_MASTER,
            Role::Worker => labels::ROLE_WORKER,
            Role::Other { of, .. } => &of.name,
        }
    }

    /// The field of its own template, where it has one.
    fn own_path(self, job: &ElasticJob) -> Option<String> {
        own(job, self).map(|_| match self {
            Role::Other { at, .. } => format!("spec.replicaTypes[{at}].template"),
            _ => "spec.master.template".to_owned(),
        })
    }
}

/// The template of a role with the short forms of the spec merged in; `None` while there is none.
///
/// # Errors
/// Everything in it that core/v1 does not know how to read, with field paths.
pub fn merged(job: &ElasticJob, role: Role<'_>) -> Result<Option<PodTemplateSpec>, SpecProblems> {
    let Some(value) = own(job, role).or(job.spec.template.as_ref()) else { return Ok(None) };
    let path = path(job, role);
    let mut problems = SpecProblems::default();
    let template = read_template(&path, value, &mut problems);
    let short = ShortForms::read(job, &mut problems);
    let Some(mut template) = template.filter(|_| problems.is_empty()) else { return Err(problems) };
    short.merge_into(&mut template, &job_selector(job));
    Ok(Some(template))
}

/// Names of the annotations that a job's pods have by its templates.
pub fn annotation_keys(job: &ElasticJob) -> BTreeSet<String> {
    let master = job.spec.master.as_ref().and_then(|m| m.template.as_ref());
    let types = job.spec.replica_types.iter().flatten().filter_map(|t| t.template.as_ref());
    let own = job.spec.template.iter().chain(master).chain(types);
    let annotations = own.filter_map(|t| t.pointer("/metadata/annotations")?.as_object());
    annotations.flat_map(|all| all.keys().cloned()).collect()
}

/// The template of a role's own.
pub(crate) fn own<'a>(job: &'a ElasticJob, role: Role<'a>) -> Option<&'a Value> {
    match role {
        Role::Master => job.spec.master.as_ref().and_then(|m| m.template.as_ref()),
        Role::Worker => None,
        Role::Other { of, .. } => of.template.as_ref(),
    }
}

/// The field that a role's template is written in.
pub(crate) fn path(job: &ElasticJob, role: Role<'_>) -> String {
    role.own_path(job).unwrap_or_else(|| "spec.template".to_owned())
}

/// The longest `terminationGracePeriodSeconds`, in seconds: a week, as for other times of a job.
const MOST_GRACE: i64 = 604_800;

/// Checks what the operator itself reads of a template; `path` is where it is in the job. A pod that is never killed could
/// never be replaced.
pub(crate) fn check(path: &str, spec: &PodSpec, problems: &mut SpecProblems) {
    resources::check(path, spec, problems);
    if let Some(given) = spec.termination_grace_period_seconds.filter(|s| !(0..=MOST_GRACE).contains(s)) {
        let path = format!("{path}.spec.terminationGracePeriodSeconds");
        problems.add(path, format!("is {given}, and must be from 0 to {MOST_GRACE}"));
    }
}

/// Selector of all pods of a job.
pub fn job_selector(job: &ElasticJob) -> LabelSelector {
    let name = job.metadata.name.clone().unwrap_or_default();
    LabelSelector { match_labels: Some([(labels::ELASTIC_JOB.to_string(), name)].into()), match_expressions: None }
}

/// Changes exactly when the user changed something that pods are made from. It is taken over what the user wrote, not
/// over what this version makes of it, so that an upgrade of the product restarts no job.
pub fn hash(job: &ElasticJob) -> String {
    let s = &job.spec;
    let inputs = json!({
        "template": s.template,
        "master": s.master.as_ref().and_then(|m| m.template.as_ref()),
        "replicaTypes": s.replica_types.as_ref().filter(|t| !t.is_empty()),
        "affinity": s.affinity,
        "topologySpreadConstraints": s.topology_spread_constraints,
        "volumes": s.volumes,
        "volumeMounts": s.volume_mounts,
        "env": s.env,
        "nprocPerNode": s.nproc_per_node,
        "launcher": s.launcher,
        "restartPolicy": s.restart_policy,
        "schedulingPolicy": s.scheduling_policy.as_ref().map(|p| json!([p.queue, p.priority_class])),
        "drain": s.elasticity.as_ref().and_then(|e| e.drain_deadline_seconds),
    });
    let mut text = String::new();
    canonical(&inputs, &mut text);
    let mut hex = hex::encode(Sha256::digest(text.as_bytes()));
    hex.truncate(12);
    hex
}

/// JSON with sorted keys and without nulls, so that equal content has equal text.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, v)| !v.is_null()).collect();
            entries.sort_by_key(|(k, _)| *k);
            out.push('{');
            for (k, v) in entries {
                out.push_str(&Value::String(k.clone()).to_string());
                out.push(':');
                canonical(v, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for v in items {
                canonical(v, out);
                out.push(',');
            }
            out.push(']');
        }
        leaf => out.push_str(&leaf.to_string()),
    }
}

fn read_template(path: &str, value: &Value, problems: &mut SpecProblems) -> Option<PodTemplateSpec> {
    for list in ["containers", "initContainers"] {
        let containers = value.get("spec").and_then(|s| s.get(list)).and_then(Value::as_array);
        for (i, c) in containers.into_iter().flatten().enumerate() {
            check_env(&format!("{path}.spec.{list}[{i}].env"), c.get("env"), problems);
        }
    }
    if !problems.is_empty() {
        return None;
    }
    let template: PodTemplateSpec = decode(path, value, problems)?;
    match &template.spec {
        None => problems.add(format!("{path}.spec"), "is missing; give the pod at least one container"),
        Some(s) if s.containers.is_empty() => {
            problems.add(format!("{path}.spec.containers"), "is empty; the first container is the training program");
        }
        Some(_) => {}
    }
    Some(template)
}

/// Numbers and booleans as values of variables are the most common slip, and core/v1's own message is hard to read.
fn check_env(path: &str, env: Option<&Value>, problems: &mut SpecProblems) {
    for (i, e) in env.and_then(Value::as_array).into_iter().flatten().enumerate() {
        if let Some(Value::Number(_) | Value::Bool(_)) = e.get("value") {
            problems.add(format!("{path}[{i}].value"), "must be text: write it in quotes");
        }
    }
}

fn decode<T: DeserializeOwned>(path: &str, value: &Value, problems: &mut SpecProblems) -> Option<T> {
    eto_api::decode(path, value)
        .map_err(|misfit| problems.add(misfit.path, format!("{}; write it as in core/v1", misfit.why)))
        .ok()
}

/// The parts of a pod that the guide lets users write beside the template.
#[derive(Default)]
struct ShortForms {
    affinity: Option<Affinity>,
    spread: Vec<TopologySpreadConstraint>,
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    env: Vec<EnvVar>,
}

impl ShortForms {
    fn read(job: &ElasticJob, problems: &mut SpecProblems) -> ShortForms {
        let s = &job.spec;
        check_env("spec.env", s.env.as_ref(), problems);
        if !problems.is_empty() {
            return ShortForms::default();
        }
        ShortForms {
            affinity: part("spec.affinity", s.affinity.as_ref(), problems),
            spread: part("spec.topologySpreadConstraints", s.topology_spread_constraints.as_ref(), problems)
                .unwrap_or_default(),
            volumes: part("spec.volumes", s.volumes.as_ref(), problems).unwrap_or_default(),
            mounts: part("spec.volumeMounts", s.volume_mounts.as_ref(), problems).unwrap_or_default(),
            env: part("spec.env", s.env.as_ref(), problems).unwrap_or_default(),
        }
    }

    fn merge_into(self, template: &mut PodTemplateSpec, selector: &LabelSelector) {
        let spec = template.spec.get_or_insert_default();
        if let Some(short) = self.affinity {
            let affinity = spec.affinity.get_or_insert_default();
            affinity.node_affinity = affinity.node_affinity.take().or(short.node_affinity);
            affinity.pod_affinity = affinity.pod_affinity.take().or(short.pod_affinity);
            affinity.pod_anti_affinity = affinity.pod_anti_affinity.take().or(short.pod_anti_affinity);
        }
        if !self.spread.is_empty() {
            spec.topology_spread_constraints.get_or_insert_default().extend(self.spread);
        }
        for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
            if constraint.label_selector.is_none() {
                constraint.label_selector = Some(selector.clone());
            }
        }
        for volume in self.volumes {
            let volumes = spec.volumes.get_or_insert_default();
            if !volumes.iter().any(|v| v.name == volume.name) {
                volumes.push(volume);
            }
        }
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            merge_container(container, &self.mounts, &self.env);
        }
    }
}

fn part<T: DeserializeOwned>(path: &str, value: Option<&Value>, problems: &mut SpecProblems) -> Option<T> {
    value.filter(|v| !v.is_null()).and_then(|v| decode(path, v, problems))
}

fn merge_container(container: &mut Container, mounts: &[VolumeMount], env: &[EnvVar]) {
    for mount in mounts {
        let own = container.volume_mounts.get_or_insert_default();
        if !own.iter().any(|m| m.mount_path == mount.mount_path) {
            own.push(mount.clone());
        }
    }
    if !env.is_empty() {
        let own = container.env.get_or_insert_default();
        // The short forms come first, so that a container's own variables can refer to them.
        let mut all: Vec<EnvVar> = env.iter().filter(|e| !own.iter().any(|o| o.name == e.name)).cloned().collect();
        all.append(own);
        *own = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_that_no_server_takes_or_that_nobody_would_wait_for_is_refused() {
        for (seconds, ok) in [(-1, false), (0, true), (MOST_GRACE, true), (i64::MAX, false)] {
            let spec = PodSpec { termination_grace_period_seconds: Some(seconds), ..PodSpec::default() };
            let mut problems = SpecProblems::default();
            check("spec.template", &spec, &mut problems);
            let paths: Vec<&str> = problems.0.iter().map(|p| p.path.as_str()).collect();
            let expected = if ok { vec![] } else { vec!["spec.template.spec.terminationGracePeriodSeconds"] };
            assert_eq!(paths, expected, "{seconds}");
        }
    }
}
