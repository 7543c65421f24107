//! The agent in a pod: an init container puts its binary there, and the training container's command runs under it.
//!
//! Everything that is added bears a name or path of ours. A template that has one of them already is told so: two
//! meanings of one volume would be found out by nobody.

use std::collections::BTreeMap;

use eto_api::{ElasticJob, Launcher};
use eto_engine::job::is_default;
use eto_membership::{Candidate, Member, Ports, Round, member_env};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, ExecAction, HTTPGetAction,
    ObjectFieldSelector, PodSpec, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecurityContext,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{containers, stop};
use crate::image::{self, ImageConfig, ImageProblem};
use crate::processes::PROCESSES;
use crate::{SpecProblems, replicas, spec};

/// Audience of the tokens that pods show to the gateway: worth nothing to the API server or to anyone else.
pub const AUDIENCE: &str = "elastic-training-gateway";
/// Name of the init container and of the volume that the agent's binary is in.
const NAME: &str = "eto-agent";
/// Where the binary's volume is mounted.
const DIRECTORY: &str = "/eto";
/// The binary in a pod.
const BINARY: &str = "/eto/eto-agent";
/// The binary in its image.
const IN_IMAGE: &str = "/eto-agent";
const TOKEN_VOLUME: &str = "eto-token";
const TOKEN_DIRECTORY: &str = "/var/run/secrets/elastic.ai";
const TOKEN_FILE: &str = "token";
/// The kubelet renews a token when a fifth of this is left.
const TOKEN_SECONDS: i64 = 3600;
/// Port of the pod on which the agent serves probes and metrics.
const PORT: i32 = 9400;
/// A user that is not root, for pods whose user is.
const NOBODY: i64 = 65532;

/// What pods are told of the gateway and given of the agent; the same for all jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSetup {
    /// Image with the binary at `/eto-agent`.
    pub image: String,
    /// `imagePullPolicy` of that image; empty = Kubernetes' default.
    pub pull_policy: String,
    /// URL of the gateway as pods reach it.
    pub url: String,
    /// The authorities (PEM) that its certificate is checked by.
    pub ca: String,
}

/// What the pod of a job with an agent is made with.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    /// The gateway and the agent.
    pub setup: &'a AgentSetup,
    /// What the training container's image runs; needed where its template names no command.
    pub image: Option<&'a ImageConfig>,
}

impl<'a> From<&'a AgentSetup> for Agent<'a> {
    fn from(setup: &'a AgentSetup) -> Self {
        Agent { setup, image: None }
    }
}

/// Of one pod.
pub(super) struct Of<'a> {
    pub(super) job: &'a str,
    pub(super) index: u32,
    pub(super) processes: u32,
    /// Who starts them, where the user says so.
    pub(super) launcher: Option<Launcher>,
    /// The pod's grace where the template has none, in seconds.
    pub(super) drain_seconds: i64,
    /// Whether it tells the last lines of processes that failed.
    pub(super) keeps_logs: bool,
    /// Where the template was written, for what is wrong with it.
    pub(super) path: &'a str,
}

/// Puts the agent in. Returns the names of the user's variables that had to give way.
pub(super) fn inject(spec: &mut PodSpec, agent: Agent<'_>, of: &Of<'_>) -> Result<Vec<String>, SpecProblems> {
    check(spec, of)?;
    let setup = agent.setup;
    if let Some(training) = spec.containers.first_mut().filter(|c| !image::has_command(c)) {
        let known = agent.image.ok_or(ImageProblem::Unknown).and_then(|image| image::complete(training, image));
        known.map_err(|problem| {
            let mut problems = SpecProblems::default();
            problems.add(format!("{}.spec.containers[0].command", of.path), problem.to_string());
            problems
        })?;
    }
    let init = installer(spec, setup);
    spec.init_containers.get_or_insert_default().insert(0, init);
    spec.volumes.get_or_insert_default().extend(volumes());
    let host = spec.host_network == Some(true);
    let Some(training) = spec.containers.first_mut() else { return Ok(Vec::new()) };
    let mut overridden = Vec::new();
    let grace = spec.termination_grace_period_seconds.unwrap_or(of.drain_seconds);
    let mut variables = environment(setup, of, grace);
    if let Some(signal) = stop::signal(training, agent.image) {
        variables.push(value("ETO_STOP_SIGNAL", signal.to_owned()));
    }
    containers::put_first(training, variables, &mut overridden);
    let mut command: Vec<String> = [BINARY, "run", "--"].map(str::to_owned).into();
    command.extend(training.command.take().unwrap_or_default());
    training.command = Some(command);
    training.volume_mounts.get_or_insert_default().extend([
        mount(NAME, DIRECTORY),
        VolumeMount { read_only: Some(true), ..mount(TOKEN_VOLUME, TOKEN_DIRECTORY) },
    ]);
    training.readiness_probe.get_or_insert_with(|| readiness(host));
    Ok(overridden)
}

/// Ready while the processes of the round in force run. In the host's network a port may be that of another pod's agent: the
/// agent is asked from within its pod there.
fn readiness(host_network: bool) -> Probe {
    let mut probe = Probe { period_seconds: Some(2), timeout_seconds: Some(3), ..Probe::default() };
    if host_network {
        probe.exec = Some(ExecAction { command: Some([BINARY, "ready"].map(str::to_owned).into()) });
    } else {
        let (path, port) = (Some("/readyz".to_owned()), IntOrString::Int(PORT));
        probe.http_get = Some(HTTPGetAction { path, port, ..HTTPGetAction::default() });
    }
    probe
}

/// Variables of the user that the agent sets anew for each round.
pub(super) fn overridden(spec: &PodSpec, job: &ElasticJob) -> Vec<String> {
    let framework = spec::framework(job.spec.framework_type).into();
    // Which variables there are does not depend on who is in the round.
    let anyone = Candidate {
        member: Member { index: 0, address: String::new(), uid: None, processes: 1 },
        healthy_since_ms: None,
    };
    let round = Round::plan("", "", 1, vec![anyone], Ports::default());
    let round = round.map(|r| r.with_types(&replicas::types(job)));
    let names = round.map(|r| member_env(framework, &r, 0)).unwrap_or_default();
    let own = spec.containers.first().and_then(|c| c.env.as_ref());
    // What the user may say: the number of processes, which is read from the template, and defaults.
    let of_round = |e: &&EnvVar| names.iter().any(|(n, _)| *n == e.name && n != PROCESSES && !is_default(n));
    own.into_iter().flatten().filter(of_round).map(|e| e.name.clone()).collect()
}

/// Names and paths that are ours, and what the agent can't take.
fn check(spec: &PodSpec, of: &Of<'_>) -> Result<(), SpecProblems> {
    let mut problems = SpecProblems::default();
    let taken = "is used by the agent in the pod; choose another, or set spec.elasticity.agent to \"Off\"";
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        if [NAME, TOKEN_VOLUME].contains(&volume.name.as_str()) {
            problems.add(format!("{}.spec.volumes[{i}].name", of.path), format!("{} {taken}", volume.name));
        }
    }
    let lists = [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())];
    for (list, all) in lists {
        for (i, container) in all.into_iter().flatten().enumerate().filter(|(_, c)| c.name == NAME) {
            problems.add(format!("{}.spec.{list}[{i}].name", of.path), format!("{} {taken}", container.name));
        }
    }
    let training = spec.containers.first();
    if let Some(training) = training {
        stop::check(&format!("{}.spec.containers[0]", of.path), training, &mut problems);
    }
    let mounts = training.and_then(|c| c.volume_mounts.as_ref());
    for (i, mount) in mounts.into_iter().flatten().enumerate() {
        let path = mount.mount_path.trim_end_matches('/');
        if [DIRECTORY, TOKEN_DIRECTORY].contains(&path) {
            let field = format!("{}.spec.containers[0].volumeMounts[{i}].mountPath", of.path);
            problems.add(field, format!("{path} {taken}"));
        }
    }
    problems.or(())
}

fn installer(spec: &PodSpec, setup: &AgentSetup) -> Container {
    // Equal, so that a pod of class Guaranteed stays one. An init container's request is not added to the pod's.
    let small: BTreeMap<_, _> =
        [("cpu", "100m"), ("memory", "64Mi")].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into();
    let pods_user = spec.security_context.as_ref().and_then(|s| s.run_as_user);
    Container {
        name: NAME.to_owned(),
        image: Some(setup.image.clone()),
        image_pull_policy: Some(setup.pull_policy.clone()).filter(|p| !p.is_empty()),
        command: Some([IN_IMAGE, "install", BINARY].map(str::to_owned).into()),
        resources: Some(ResourceRequirements {
            requests: Some(small.clone()),
            limits: Some(small),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            // The image has a user of its own; a pod that says "root" would overrule it, and be refused.
            run_as_user: (pods_user == Some(0)).then_some(NOBODY),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![mount(NAME, DIRECTORY)]),
        ..Container::default()
    }
}

fn volumes() -> [Volume; 2] {
    let token = ServiceAccountTokenProjection {
        audience: Some(AUDIENCE.to_owned()),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: TOKEN_FILE.to_owned(),
    };
    [
        Volume {
            name: NAME.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: Some(Quantity("64Mi".to_owned())) }),
            ..Volume::default()
        },
        Volume {
            name: TOKEN_VOLUME.to_owned(),
            projected: Some(ProjectedVolumeSource {
                sources: Some(vec![VolumeProjection {
                    service_account_token: Some(token),
                    ..VolumeProjection::default()
                }]),
                default_mode: None,
            }),
            ..Volume::default()
        },
    ]
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn value(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), value_from: None }
}

fn environment(setup: &AgentSetup, of: &Of<'_>, grace: i64) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: None, field_path: path.to_owned() }),
            ..EnvVarSource::default()
        }),
    };
    let mut all = vec![
        value("ETO_GATEWAY", setup.url.clone()),
        value("ETO_GATEWAY_CA", setup.ca.clone()),
        value("ETO_TOKEN_FILE", format!("{TOKEN_DIRECTORY}/{TOKEN_FILE}")),
        field("ETO_POD_NAME", "metadata.name"),
        field("ETO_POD_UID", "metadata.uid"),
        field("ETO_POD_IP", "status.podIP"),
        value("ETO_JOB", of.job.to_owned()),
        value("ETO_INDEX", of.index.to_string()),
        value("ETO_PROCESSES", of.processes.to_string()),
        value("ETO_TERMINATION_GRACE_SECONDS", grace.to_string()),
        value("ETO_METRICS_PORT", PORT.to_string()),
    ];
    if !of.keeps_logs {
        all.push(value("ETO_LAST_LINES", "0".to_owned()));
    }
    if let Some(launcher) = of.launcher {
        let who = match launcher {
            Launcher::Agent => "agent",
            Launcher::Command => "command",
        };
        all.push(value("ETO_LAUNCHER", who.to_owned()));
    }
    all
}
