//! From a job and a member of a round to the pod that runs it.

mod affinity;
mod agent;
mod containers;
pub(crate) mod stop;

use std::collections::BTreeMap;

use eto_api::{ElasticJob, RestartPolicy, labels};
use eto_engine::plan::{NewPod, hostname};
use eto_engine::state::RoundMode;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha2::{Digest, Sha256};

use crate::processes;
use crate::template::{self, Role};
use crate::{SpecProblems, resources, service};

pub use agent::{AUDIENCE, Agent, AgentSetup};

/// A pod to create.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltPod {
    pub pod: Pod,
    /// Variables of the user that had to give way to those of the round.
    pub overridden: Vec<String>,
}

/// Nodes that a new pod is kept off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepOff {
    /// It waits rather than run there: it would have to go again.
    pub never: Vec<String>,
    /// It runs there where nothing else will do.
    pub rather_not: Vec<String>,
}

impl BuiltPod {
    /// Adds to the pod's node affinity what keeps it off these nodes.
    #[must_use]
    pub fn keep_off(mut self, nodes: &KeepOff) -> Self {
        if let Some(spec) = &mut self.pod.spec {
            affinity::keep_off(spec, nodes);
        }
        self
    }
}

/// Builds the pod of a member. The same arguments give the same pod with the same name, so a retry can't make two.
/// `None` while the job has no template. Where an agent drives rounds (`new.mode`), `agent` is needed, and the training
/// container's command runs under it.
///
/// # Errors
/// What is wrong with the template or its short forms.
pub fn build(job: &ElasticJob, new: &NewPod, agent: Option<Agent<'_>>) -> Result<Option<BuiltPod>, SpecProblems> {
    let (role, _) = Role::of(job, new.index);
    let Some(template) = template::merged(job, role)? else { return Ok(None) };
    let PodTemplateSpec { metadata, spec } = template;
    let mut spec = spec.unwrap_or_default();
    let overridden = match new.mode {
        RoundMode::Recreate => containers::dress(&mut spec, &new.env.variables(), keeps_logs(job)),
        RoundMode::Agent => under_agent(job, new, agent, &mut spec)?,
    };
    if let (Some(bytes), Some(training)) = (new.memory, spec.containers.first_mut()) {
        resources::raise_memory(training, bytes);
    }
    settle(job, new, &mut spec);
    if let Some(choice) = &new.node {
        affinity::point_to(&mut spec, choice);
    }
    let mut metadata = metadata.unwrap_or_default();
    metadata.labels.get_or_insert_default().extend(own_labels(job, new));
    if let Some(queue) = job.spec.scheduling_policy.as_ref().and_then(|p| p.queue.clone()) {
        metadata.annotations.get_or_insert_default().entry(labels::VOLCANO_QUEUE.to_string()).or_insert(queue);
    }
    if let Some(choice) = &new.node {
        metadata.annotations.get_or_insert_default().insert(labels::PLACED_ON.to_string(), choice.node.clone());
    }
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(job, new.index, new.incarnation)),
            namespace: job.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: owner(job).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    };
    Ok(Some(BuiltPod { pod, overridden }))
}

/// Variables that a template of the job sets, and each of its rounds sets anew; sorted.
pub(crate) fn overridden<'a>(job: &ElasticJob, templates: impl Iterator<Item = &'a PodSpec>) -> Vec<String> {
    let mut names: Vec<String> = templates.flat_map(|t| agent::overridden(t, job)).collect();
    names.sort();
    names.dedup();
    names
}

/// The pod outlives its round: what belongs to a round is the agent's to set.
fn under_agent(
    job: &ElasticJob,
    new: &NewPod,
    setup: Option<Agent<'_>>,
    spec: &mut PodSpec,
) -> Result<Vec<String>, SpecProblems> {
    let mut problems = SpecProblems::default();
    let Some(setup) = setup else {
        problems.add("spec.elasticity.agent", "there is no gateway that an agent in the pod could speak to");
        return Err(problems);
    };
    let (role, _) = Role::of(job, new.index);
    let processes = match role {
        Role::Other { .. } => 1,
        Role::Master | Role::Worker => processes::of(job, spec, &mut problems).count,
    };
    let mut overridden = agent::overridden(spec, job);
    containers::dress(spec, &[], keeps_logs(job));
    let meta = &job.metadata;
    let name =
        format!("{}/{}", meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default());
    let of = agent::Of {
        job: &name,
        index: new.index,
        processes,
        launcher: job.spec.launcher,
        drain_seconds: drain_seconds(job),
        keeps_logs: keeps_logs(job),
        path: &template::path(job, role),
    };
    match agent::inject(spec, setup, &of) {
        Ok(more) => overridden.extend(more),
        Err(SpecProblems(more)) => problems.0.extend(more),
    }
    overridden.sort();
    overridden.dedup();
    problems.or(overridden)
}

/// Name of the pod: `<job>-master-0-<suffix>`, `<job>-worker-<index>-<suffix>`, or `<job>-<type>-<index of the
/// type>-<suffix>`. The suffix differs between
/// incarnations, since a successor may be there before its predecessor is gone.
pub fn pod_name(job: &ElasticJob, index: u32, incarnation: u64) -> String {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let (role, within) = Role::of(job, index);
    format!("{name}-{}-{within}-{}", role.name(), suffix(uid, incarnation, index))
}

/// Five characters that read well and spell no words, as in names that Kubernetes makes.
fn suffix(uid: &str, incarnation: u64, index: u32) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let digest = Sha256::digest(format!("{uid}/{incarnation}/{index}").as_bytes());
    digest.iter().take(5).map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()])).collect()
}

/// Makes the job the owner, so that deleting it deletes all of it. `None` for a job that is on no server.
pub(crate) fn owner(job: &ElasticJob) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: format!("{}/{}", eto_api::GROUP, eto_api::VERSION),
        kind: "ElasticJob".to_string(),
        name: job.metadata.name.clone()?,
        uid: job.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

/// Labels that pods of a job have by their role, whatever their round and index: what budgets and services of others may
/// select them by. One set for each role, the worker's first.
pub fn labels_by_role(job: &ElasticJob) -> Vec<BTreeMap<String, String>> {
    let of = |role: Role<'_>| {
        let template = template::merged(job, role).ok().flatten();
        let mut all = template.and_then(|t| t.metadata).and_then(|m| m.labels).unwrap_or_default();
        let own = shared_labels(job).into_iter().chain(role_labels(role));
        all.extend(own.map(|(k, v)| (k.to_string(), v)));
        all
    };
    Role::all(job).into_iter().map(of).collect()
}

fn role_labels(role: Role<'_>) -> [(&'static str, String); 3] {
    [labels::ROLE, labels::KUBEFLOW_JOB_ROLE, labels::KUBEFLOW_REPLICA_TYPE]
        .map(|label| (label, role.name().to_string()))
}

fn shared_labels(job: &ElasticJob) -> [(&'static str, String); 5] {
    let name = job.metadata.name.clone().unwrap_or_default();
    [
        (labels::ELASTIC_JOB, name.clone()),
        (labels::JOB_NAME, name.clone()),
        (labels::KUBEFLOW_JOB_NAME, name),
        (labels::MANAGED_BY, labels::MANAGER.to_string()),
        (labels::KUBEFLOW_OPERATOR_NAME, labels::MANAGER.to_string()),
    ]
}

fn own_labels(job: &ElasticJob, new: &NewPod) -> BTreeMap<String, String> {
    let (role, within) = Role::of(job, new.index);
    [
        (labels::ROUND, new.round.to_string()),
        (labels::ROUND_SIZE, new.size.to_string()),
        (labels::INDEX, new.index.to_string()),
        (labels::TEMPLATE_HASH, template::hash(job)),
        (labels::KUBEFLOW_REPLICA_INDEX, within.to_string()),
    ]
    .into_iter()
    .chain(role_labels(role))
    .chain(shared_labels(job))
    .chain(agent_labels(new))
    .map(|(k, v)| (k.to_string(), v))
    .collect()
}

/// What the engine reads off a pod that outlives rounds.
fn agent_labels(new: &NewPod) -> Vec<(&'static str, String)> {
    match new.mode {
        RoundMode::Recreate => Vec::new(),
        RoundMode::Agent => {
            vec![(labels::INCARNATION, new.incarnation.to_string()), (labels::ROUNDS, labels::ROUNDS_AGENT.to_string())]
        }
    }
}

/// What the job decides for the pod as a whole.
fn settle(job: &ElasticJob, new: &NewPod, spec: &mut PodSpec) {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    spec.hostname = Some(hostname(name, new.index));
    spec.subdomain = Some(service::name(job));
    // With `ExitCode` the operator has to see the code of each exit, so the kubelet must not restart in place.
    spec.restart_policy = Some(
        match job.spec.restart_policy {
            None | Some(RestartPolicy::OnFailure) => "OnFailure",
            Some(RestartPolicy::Never | RestartPolicy::ExitCode) => "Never",
        }
        .to_string(),
    );
    spec.termination_grace_period_seconds.get_or_insert(drain_seconds(job));
    if let Some(class) = job.spec.scheduling_policy.as_ref().and_then(|p| p.priority_class.clone()) {
        spec.priority_class_name.get_or_insert(class);
    }
}

fn keeps_logs(job: &ElasticJob) -> bool {
    job.spec.elasticity.as_ref().and_then(|e| e.keep_failure_logs).unwrap_or(true)
}

fn drain_seconds(job: &ElasticJob) -> i64 {
    job.spec.elasticity.as_ref().and_then(|e| e.drain_deadline_seconds).unwrap_or(30)
}
