//! From an `ElasticJob` as the user wrote it to the engine's [`JobSpec`]: validated, defaults filled in.
//!
//! The rules of the CRD are checked again here, since an object may have been stored under an older schema and the
//! embedded mode has no API server. The result depends on the object alone: adapters keep it until the object changes.

mod elasticity;
mod failures;
mod scaling;

use std::time::Duration;

use eto_api::{CleanPodPolicy, ElasticJob, FrameworkType, MAX_NAME, ReplicaSizes, RestartPolicy as ApiRestartPolicy};
use eto_engine::contract::{Framework, WorkerRequest};
use eto_engine::guard::sizes;
use eto_engine::job::{CleanPods, JobKey, JobSpec, LegalSizes, PlacementSpec, RestartPolicy, TemplateFacts};
use eto_engine::time::Time;
use k8s_openapi::api::core::v1::PodSpec;

pub use scaling::BUILT_IN;

use crate::template::{self, Role};
use crate::{SpecProblems, image, pod, processes, replicas, resources};

/// The largest number that a field of sizes takes. A job can have no more than [`eto_engine::guard::sizes::most`].
pub const MAX_SIZE_FIELD: i64 = 100_000;
/// `spec.backoffLimit` where there is none, as in batch/v1.
pub const BACKOFF_LIMIT: u32 = 6;

/// Reads a job.
///
/// # Errors
/// Every problem found, each with the path of its field and its mend.
pub fn job_spec(job: &ElasticJob) -> Result<JobSpec, SpecProblems> {
    let mut problems = SpecProblems::default();
    if let Some(why) = &job.spec.undecodable {
        // The text begins with the field's path.
        let (path, message) = why.split_once(": ").unwrap_or(("spec", why));
        problems.add(path, format!("{message}; the rest was not looked at"));
        return Err(problems);
    }
    let s = &job.spec;
    let key = key(job, &mut problems);
    let sizes = sizes(job, &mut problems);
    let legal = legal_sizes(s.replica_sizes.as_ref(), sizes.min, sizes.max, &mut problems);
    let types = replicas::checked(job, sizes.min, &mut problems);
    let (template, grace) = template_facts(job, &mut problems).unzip();
    let elasticity = elasticity::read(job, grace.flatten(), &mut problems);
    let seconds = |path: &str, v: Option<i64>, problems: &mut SpecProblems| {
        v.and_then(|v| int(path, v, 0, i64::from(i32::MAX), problems)).map(|v| Duration::from_secs(v.into()))
    };
    let backoff = s.backoff_limit.and_then(|v| int("spec.backoffLimit", v, 0, i64::from(i32::MAX), &mut problems));
    let spec = JobSpec {
        key,
        uid: job.metadata.uid.clone().unwrap_or_default(),
        generation: job.metadata.generation.and_then(|g| u64::try_from(g).ok()).unwrap_or(0),
        created: job.metadata.creation_timestamp.as_ref().map_or(Time(0), |t| crate::spec::time(t.0)),
        framework: framework(s.framework_type),
        replicas: sizes.replicas,
        min: sizes.min,
        max: sizes.max,
        legal,
        types,
        template,
        restart: match s.restart_policy {
            None | Some(ApiRestartPolicy::OnFailure) => RestartPolicy::OnFailure,
            Some(ApiRestartPolicy::Never) => RestartPolicy::Never,
            Some(ApiRestartPolicy::ExitCode) => RestartPolicy::ExitCode,
        },
        backoff_limit: backoff.unwrap_or(BACKOFF_LIMIT),
        suspend: s.suspend.unwrap_or(false),
        active_deadline: seconds("spec.activeDeadlineSeconds", s.active_deadline_seconds, &mut problems),
        ttl_after_finished: seconds("spec.ttlSecondsAfterFinished", s.ttl_seconds_after_finished, &mut problems),
        clean_pods: match s.clean_pod_policy {
            None | Some(CleanPodPolicy::Running) => CleanPods::Running,
            Some(CleanPodPolicy::All) => CleanPods::All,
            Some(CleanPodPolicy::None) => CleanPods::None,
        },
        scaling: s.scaling_policy.as_ref().map(|p| scaling::scaling(p, &mut problems)),
        placement: placement(job, &mut problems),
        elasticity,
    };
    if problems.is_empty() {
        check_batch(&spec, &mut problems);
    }
    problems.or(spec)
}

/// A moment as the engine counts it; before the epoch is the epoch.
pub(crate) fn time(at: k8s_openapi::jiff::Timestamp) -> Time {
    Time(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

/// A whole number in a range, or a problem.
fn int(path: &str, value: i64, low: i64, high: i64, problems: &mut SpecProblems) -> Option<u32> {
    match u32::try_from(value) {
        Ok(v) if (low..=high).contains(&value) => Some(v),
        _ => {
            problems.add(path, format!("is {value}, and must be from {low} to {high}"));
            None
        }
    }
}

fn key(job: &ElasticJob, problems: &mut SpecProblems) -> JobKey {
    let name = job.metadata.name.clone().unwrap_or_default();
    if name.is_empty() {
        problems.add("metadata.name", "is missing");
    } else if name.len() > MAX_NAME {
        problems.add(
            "metadata.name",
            format!("has {} characters, at most {MAX_NAME} are possible: host names are made from it", name.len()),
        );
    } else if !dns_label(&name) {
        problems.add("metadata.name", "must begin with a letter and hold lower-case letters, digits and '-' only");
    }
    JobKey { namespace: job.metadata.namespace.clone().unwrap_or_else(|| "default".to_string()), name }
}

/// Whether a service may have this name (RFC 1035 label, without the length).
pub(crate) fn dns_label(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
}

pub(crate) fn framework(f: Option<FrameworkType>) -> Framework {
    match f {
        None | Some(FrameworkType::PyTorch) => Framework::PyTorch,
        Some(FrameworkType::TensorFlow) => Framework::TensorFlow,
        Some(FrameworkType::JAX) => Framework::Jax,
        Some(FrameworkType::Custom) => Framework::Custom,
    }
}

struct Sizes {
    replicas: u32,
    min: u32,
    max: u32,
}

/// The effective range: the job's and the scaling policy's, intersected; where neither says, `replicas`. A policy
/// that names a maximum alone has HPA's minimum of 1.
fn sizes(job: &ElasticJob, problems: &mut SpecProblems) -> Sizes {
    let s = &job.spec;
    let mut size = |path: &str, v: Option<i64>| v.and_then(|v| int(path, v, 1, MAX_SIZE_FIELD, problems));
    let policy = s.scaling_policy.as_ref();
    let replicas = size("spec.replicas", s.replicas);
    let job_min = size("spec.minReplicas", s.min_replicas);
    let job_max = size("spec.maxReplicas", s.max_replicas);
    let policy_min = size("spec.scalingPolicy.minReplicas", policy.and_then(|p| p.min_replicas));
    let policy_max = size("spec.scalingPolicy.maxReplicas", policy.and_then(|p| p.max_replicas));
    if !problems.is_empty() {
        return Sizes { replicas: 1, min: 1, max: 1 };
    }
    let replicas = replicas.unwrap_or(1);
    let min = match (job_min, policy_min) {
        (Some(a), Some(b)) => a.max(b),
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) if policy_max.is_some() => 1,
        // Not above an explicit maximum, so that the complaint below is about `replicas`.
        (None, None) => job_max.map_or(replicas, |max| replicas.min(max)),
    };
    let max = match (job_max, policy_max) {
        (Some(a), Some(b)) => a.min(b),
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) => replicas.max(min),
    };
    check_most(job, max, job_max.is_some() || policy_max.is_some(), problems);
    let from = if policy_min.is_some() || policy_max.is_some() { " (with the scaling policy's range)" } else { "" };
    if min > max {
        problems.add(
            "spec.minReplicas",
            format!("the smallest size {min} is above the largest {max}{from}; lower minReplicas or raise maxReplicas"),
        );
    } else if replicas < min {
        problems.add(
            "spec.replicas",
            format!("is {replicas} and below the smallest size {min}{from}; raise replicas or lower minReplicas"),
        );
    } else if replicas > max {
        problems.add(
            "spec.replicas",
            format!("is {replicas} and above the largest size {max}{from}; lower replicas or raise maxReplicas"),
        );
    }
    Sizes { replicas, min, max }
}

/// What each worker is told of all others has its limits.
fn check_most(job: &ElasticJob, max: u32, named: bool, problems: &mut SpecProblems) {
    let framework = framework(job.spec.framework_type);
    let most = sizes::most(framework);
    if max <= most {
        return;
    }
    let (what, mend) = match framework {
        Framework::TensorFlow => ("a TensorFlow job, whose workers are all named in TF_CONFIG,", ""),
        _ => ("a job, whose workers are each told of all others,", ", and give each worker more devices and processes"),
    };
    let path = if named { "spec.maxReplicas" } else { "spec.replicas" };
    problems.add(path, format!("the largest size is {max}, and {what} can have {most}: lower it{mend}"));
}

fn legal_sizes(sizes: Option<&ReplicaSizes>, min: u32, max: u32, problems: &mut SpecProblems) -> LegalSizes {
    const PATH: &str = "spec.replicaSizes";
    let Some(sizes) = sizes else { return LegalSizes::Any };
    match (&sizes.list, sizes.multiple_of) {
        (Some(list), None) => {
            let read = |(i, &v): (usize, &i64)| int(&format!("{PATH}.list[{i}]"), v, 1, MAX_SIZE_FIELD, problems);
            let mut legal: Vec<u32> = list.iter().enumerate().filter_map(read).collect();
            legal.sort_unstable();
            legal.dedup();
            if !legal.iter().any(|v| (min..=max).contains(v)) {
                problems.add(format!("{PATH}.list"), format!("holds no size from {min} to {max}; add one"));
            }
            LegalSizes::List(legal)
        }
        (None, Some(n)) => {
            let Some(n) = int(&format!("{PATH}.multipleOf"), n, 1, MAX_SIZE_FIELD, problems) else {
                return LegalSizes::Any;
            };
            if max / n * n < min.max(1) {
                problems.add(format!("{PATH}.multipleOf"), format!("no multiple of {n} lies from {min} to {max}"));
            }
            LegalSizes::MultipleOf(n)
        }
        _ => {
            problems.add(PATH, "needs exactly one of list and multipleOf");
            LegalSizes::Any
        }
    }
}

/// What the engine needs of the templates. Of two different ones of workers the larger request counts: capacity is asked for
/// any worker. With them the longest `terminationGracePeriodSeconds` that the templates name.
fn template_facts(job: &ElasticJob, problems: &mut SpecProblems) -> Option<(TemplateFacts, Option<Duration>)> {
    let mut read = |role| match template::merged(job, role) {
        Ok(t) => t,
        Err(SpecProblems(more)) => {
            for p in more {
                if !problems.0.contains(&p) {
                    problems.0.push(p);
                }
            }
            None
        }
    };
    let mut specs = Vec::new();
    for role in Role::all(job) {
        specs.push((role, read(role)?.spec.unwrap_or_default()));
    }
    for (role, spec) in specs.iter().filter(|(r, _)| *r == Role::Worker || template::own(job, *r).is_some()) {
        template::check(&template::path(job, *role), spec, problems);
    }
    let (_, worker) = specs.first()?;
    let mut request = WorkerRequest::default();
    for (_, spec) in specs.iter().filter(|(role, _)| !matches!(role, Role::Other { .. })) {
        let own = resources::scheduling(spec);
        let most = |a: f64, b: f64| a.max(b);
        request = WorkerRequest {
            cpu: most(request.cpu, own.cpu),
            memory: most(request.memory, own.memory),
            gpus: most(request.gpus, own.gpus),
        };
    }
    let processes = processes::of(job, worker, problems);
    let has_command = |s: &PodSpec| s.containers.first().is_some_and(image::has_command);
    let grace = specs.iter().filter_map(|(_, s)| u64::try_from(s.termination_grace_period_seconds?).ok()).max();
    let facts = TemplateFacts {
        hash: template::hash(job),
        request,
        containers: resources::per_container(worker),
        processes: processes.count,
        processes_without_agent: processes.without_agent,
        overridden: pod::overridden(job, specs.iter().map(|(_, s)| s)),
        command: specs.iter().all(|(_, s)| has_command(s)),
    };
    Some((facts, grace.map(Duration::from_secs)))
}

fn placement(job: &ElasticJob, problems: &mut SpecProblems) -> Option<PlacementSpec> {
    const PATH: &str = "spec.placementPolicy";
    let p = job.spec.placement_policy.as_ref()?;
    scaling::check_module(&format!("{PATH}.module"), &p.module, problems);
    Some(PlacementSpec {
        module: p.module.clone(),
        config: scaling::config(&format!("{PATH}.config"), p.config.as_ref(), problems),
        mode: scaling::mode(p.mode),
    })
}

/// A job whose batch no legal size can share would have a size all the same, and other maths at each.
fn check_batch(job: &JobSpec, problems: &mut SpecProblems) {
    let Some(batch) = job.elasticity.batch else { return };
    if sizes::legal(job).is_empty() {
        let processes = job.processes();
        let message = format!(
            "{} samples can't be shared evenly by any legal size from {} to {} ({processes} processes per worker); choose \
             a batch that more sizes divide, or let a size that does be legal",
            batch.samples, job.min, job.max
        );
        problems.add("spec.elasticity.globalBatchSize", message);
    }
}
