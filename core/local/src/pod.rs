//! From the pod that a cluster would run to a process of this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eto_api::Launcher;
use eto_cycle::SpecProblems;
use eto_engine::plan::NewPod;
use eto_membership::agent::CommandKind;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod, PodSpec};

use crate::expand::expand;
use crate::load::Job;
use crate::process::Launch;
use crate::supervise::Further;
use crate::table::{Blueprint, NODE};

/// `terminationGracePeriodSeconds` where there is none.
const GRACE: Duration = Duration::from_secs(30);
/// The address of every worker.
pub const ADDRESS: &str = "127.0.0.1";

/// Why the pod template can't be run as a process.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PodError {
    #[error("the pod template can't be used:\n{0}")]
    Template(String),
    #[error("spec.template is missing: there is nothing to run")]
    NoTemplate,
    #[error(
        "container `{0}` has no `command`: on a cluster it comes from the image, which `eto run` does not read. Write \
         it in the template, for example command: [python, train.py]"
    )]
    NoCommand(String),
    #[error(
        "variable `{name}` comes from {source_kind}, which needs a cluster. Give it a `value` for a run on this \
         machine, or mark the reference `optional: true`"
    )]
    NeedsCluster { name: String, source_kind: &'static str },
    #[error("variable `{name}` refers to the field `{path}`, which a process does not have")]
    NoField { name: String, path: String },
    #[error("{place} of container `{container}` has a NUL byte (\\0), which no process can be given: remove it")]
    Nul { container: String, place: String },
}

impl From<SpecProblems> for PodError {
    fn from(problems: SpecProblems) -> Self {
        let lines: Vec<String> = problems.0.iter().map(|p| format!("  {}: {}", p.path, p.message)).collect();
        PodError::Template(lines.join("\n"))
    }
}

/// What stands for a new pod: a process, or several with the environments of `each` where there is more than one and the
/// command does not start them itself. `directory` overrides the template's `workingDir`.
pub fn blueprint(
    job: &Job,
    new: &NewPod,
    each: &[Vec<(String, String)>],
    directory: Option<&Path>,
) -> Result<Blueprint, PodError> {
    let template = job.spec.template.as_ref().ok_or(PodError::NoTemplate)?;
    let mut first = Made::of(job, new)?;
    let mut further = Vec::new();
    let own = first.pod.spec.as_ref().and_then(|s| s.containers.first()?.working_dir.clone());
    let directory = directory.map(Path::to_path_buf).or_else(|| own.map(PathBuf::from));
    let read = |name: &str| crate::load::script(directory.as_deref(), name);
    let seen = || CommandKind::of(&first.command, read).starts_processes();
    let launches = || job.object.spec.launcher.map_or_else(seen, |launcher| launcher == Launcher::Command);
    if each.len() > 1 && !launches() {
        let of = |env: &Vec<(String, String)>| Made::of(job, &NewPod { env: env.clone().into(), ..new.clone() });
        first = of(&each[0])?;
        further = each[1..].iter().map(|env| Ok(of(env)?.beside(&first))).collect::<Result<_, PodError>>()?;
    }
    let pod_spec = first.pod.spec.as_ref().ok_or(PodError::NoTemplate)?;
    Ok(Blueprint {
        name: first.pod.metadata.name.clone().unwrap_or_default(),
        index: new.index,
        round: new.round,
        size: new.size,
        template_hash: template.hash.clone(),
        request: template.request,
        grace: grace(pod_spec),
        restart_in_place: pod_spec.restart_policy.as_deref() == Some("OnFailure"),
        launch: Launch { directory, command: first.command, env: first.env, further },
    })
}

/// A pod as a cluster would run it, and the process that its first container is.
struct Made {
    pod: Pod,
    command: Vec<String>,
    env: BTreeMap<String, String>,
}

impl Made {
    fn of(job: &Job, new: &NewPod) -> Result<Made, PodError> {
        let pod = eto_cycle::pod::build(&job.object, new, None)?.ok_or(PodError::NoTemplate)?.pod;
        let container = pod.spec.as_ref().and_then(|s| s.containers.first()).ok_or(PodError::NoTemplate)?;
        let env = environment(&pod, container)?;
        let command = command(container, &env)?;
        no_nul(container, &command, &env)?;
        Ok(Made { pod, command, env })
    }

    /// As a further process beside the first: of its environment what is another.
    fn beside(self, first: &Made) -> Further {
        let env = self.env.into_iter().filter(|(name, value)| first.env.get(name) != Some(value)).collect();
        Further { command: self.command, env }
    }
}

fn grace(spec: &PodSpec) -> Duration {
    let seconds = spec.termination_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(GRACE, Duration::from_secs)
}

fn command(container: &Container, env: &BTreeMap<String, String>) -> Result<Vec<String>, PodError> {
    let program = container.command.as_deref().unwrap_or_default();
    if program.is_empty() {
        return Err(PodError::NoCommand(container.name.clone()));
    }
    let words = program.iter().chain(container.args.iter().flatten());
    let words: Vec<String> = words.map(|word| expand(word, |name| env.get(name).map(String::as_str))).collect();
    if words[0].is_empty() {
        return Err(PodError::NoCommand(container.name.clone()));
    }
    Ok(words)
}

/// What the system would refuse each time that the process is started, without a word of where it is.
fn no_nul(container: &Container, command: &[String], env: &BTreeMap<String, String>) -> Result<(), PodError> {
    let program = container.command.as_ref().map_or(0, Vec::len);
    let word = command.iter().position(|word| word.contains('\0')).map(|i| match i.checked_sub(program) {
        Some(i) => format!("`args[{i}]`"),
        None => format!("`command[{i}]`"),
    });
    let variable = || {
        let found = env.iter().find(|(name, value)| name.contains('\0') || value.contains('\0'));
        found.map(|(name, _)| format!("variable `{}`", name.escape_default()))
    };
    match word.or_else(variable) {
        Some(place) => Err(PodError::Nul { container: container.name.clone(), place }),
        None => Ok(()),
    }
}

/// The container's variables. A value may refer to variables above it, as in a pod.
fn environment(pod: &Pod, container: &Container) -> Result<BTreeMap<String, String>, PodError> {
    let mut env = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => Some(expand(value, |name| env.get(name).map(|v: &String| v.as_str()))),
            (None, Some(source)) => from_source(pod, container, variable, source)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            env.insert(variable.name.clone(), value);
        }
    }
    for source in container.env_from.iter().flatten() {
        let (optional, kind) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), _) => (map.optional, "a ConfigMap (envFrom)"),
            (_, Some(secret)) => (secret.optional, "a Secret (envFrom)"),
            _ => continue,
        };
        if optional != Some(true) {
            let name = source.prefix.clone().unwrap_or_else(|| "*".to_owned());
            return Err(PodError::NeedsCluster { name, source_kind: kind });
        }
    }
    Ok(env)
}

fn from_source(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    source: &EnvVarSource,
) -> Result<Option<String>, PodError> {
    let name = || variable.name.clone();
    if let Some(field) = &source.field_ref {
        let value = field_value(pod, &field.field_path);
        return value.map(Some).ok_or_else(|| PodError::NoField { name: name(), path: field.field_path.clone() });
    }
    if let Some(resource) = &source.resource_field_ref {
        let value = resource_value(container, &resource.resource);
        return value.map(Some).ok_or_else(|| PodError::NoField { name: name(), path: resource.resource.clone() });
    }
    let (optional, source_kind) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => (map.optional, "a ConfigMap"),
        (_, Some(secret)) => (secret.optional, "a Secret"),
        _ => (None, "a source that is not known here"),
    };
    if optional == Some(true) { Ok(None) } else { Err(PodError::NeedsCluster { name: name(), source_kind }) }
}

fn field_value(pod: &Pod, path: &str) -> Option<String> {
    let metadata = &pod.metadata;
    let of_map = |map: &Option<BTreeMap<String, String>>, key: &str| {
        Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default())
    };
    match path {
        // The name is unique to a worker and its round, as a UID is.
        "metadata.name" | "metadata.uid" => metadata.name.clone(),
        "metadata.namespace" => Some(metadata.namespace.clone().unwrap_or_else(|| "default".to_owned())),
        "spec.nodeName" => Some(NODE.to_owned()),
        "status.podIP" | "status.hostIP" | "status.podIPs" | "status.hostIPs" => Some(ADDRESS.to_owned()),
        _ => {
            let (map, key) = path.strip_suffix("']").and_then(|path| path.split_once("['"))?;
            match map {
                "metadata.labels" => of_map(&metadata.labels, key),
                "metadata.annotations" => of_map(&metadata.annotations, key),
                _ => None,
            }
        }
    }
}

/// As the kubelet writes it with the default divisor: whole cores or bytes, rounded up.
fn resource_value(container: &Container, resource: &str) -> Option<String> {
    let (kind, what) = resource.split_once('.')?;
    let resources = container.resources.as_ref()?;
    let list = if kind == "limits" { &resources.limits } else { &resources.requests };
    let quantity = eto_cycle::quantity::parse(&list.as_ref()?.get(what)?.0).ok()?;
    Some(format!("{:.0}", quantity.as_f64().ceil()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use eto_engine::state::RoundMode;
    use eto_engine::time::Time;

    use super::*;

    fn job(container: &str, rest: &str) -> Job {
        let text = format!(
            "apiVersion: elastic.ai/v1alpha1\nkind: ElasticJob\nmetadata: {{name: j, namespace: team}}\nspec:\n  \
             replicas: 2\n  frameworkType: PyTorch\n{rest}\n  template:\n    spec:\n      containers:\n      - {container}\n"
        );
        crate::load::parse(Path::new("job.yaml"), &text, Time(0)).unwrap()
    }

    fn new_pod() -> NewPod {
        let env = vec![("RANK".to_owned(), "1".to_owned())].into();
        NewPod { index: 1, round: 3, size: 2, incarnation: 3, mode: RoundMode::Recreate, env, node: None, memory: None }
    }

    fn made(container: &str, rest: &str) -> Result<Blueprint, PodError> {
        blueprint(&job(container, rest), &new_pod(), &[], None)
    }

    #[test]
    fn command_environment_and_references() {
        let plan = made(
            "{name: t, command: [python, -u], args: ['--rank=$(RANK)', '$(A)', $$(A)], workingDir: /tmp, env: [{name: A, \
             value: 'a-$(RANK)'}, {name: RANK, value: '7'}, {name: N, valueFrom: {fieldRef: {fieldPath: \
             metadata.namespace}}}, {name: C, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}, {name: S, \
             valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}], resources: {requests: {cpu: 500m}}}",
            "  env:\n  - {name: SHORT, value: form}\n  restartPolicy: OnFailure",
        )
        .unwrap();
        assert_eq!(plan.launch.command, ["python", "-u", "--rank=1", "a-1", "$(A)"]);
        assert_eq!(plan.launch.directory.as_deref(), Some(Path::new("/tmp")));
        for (name, value) in [("RANK", "1"), ("A", "a-1"), ("N", "team"), ("C", "1"), ("SHORT", "form")] {
            assert_eq!(plan.launch.env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!plan.launch.env.contains_key("S"), "an optional reference that is not there is left out");
        assert!(plan.restart_in_place);
        assert!((plan.request.cpu - 0.5).abs() < f64::EPSILON);
        assert_eq!((plan.index, plan.round, plan.size), (1, 3, 2));
    }

    #[test]
    fn what_needs_a_cluster_is_said_with_its_mend() {
        let error = made("{name: t}", "").unwrap_err();
        assert!(error.to_string().contains("has no `command`"), "{error}");
        let secret = "{name: t, command: [a], env: [{name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]}";
        let error = made(secret, "").unwrap_err();
        assert_eq!(error, PodError::NeedsCluster { name: "S".to_owned(), source_kind: "a Secret" });
        let field = "{name: t, command: [a], env: [{name: F, valueFrom: {fieldRef: {fieldPath: spec.nothing}}}]}";
        assert!(matches!(made(field, ""), Err(PodError::NoField { .. })));
        let from = "{name: t, command: [a], envFrom: [{configMapRef: {name: m}}]}";
        assert!(matches!(made(from, ""), Err(PodError::NeedsCluster { .. })));
    }

    #[test]
    fn a_nul_byte_is_found_before_anything_starts() {
        for (container, place) in [
            (r#"{name: t, command: [a, "b\0"]}"#, "`command[1]`"),
            (r#"{name: t, command: [a], args: [b, "\0"]}"#, "`args[1]`"),
            (r#"{name: t, command: [a], env: [{name: A, value: "a\0b"}]}"#, "variable `A`"),
        ] {
            let error = made(container, "").unwrap_err().to_string();
            assert!(error.starts_with(place) && error.contains("of container `t` has a NUL byte"), "{error}");
        }
    }

    #[test]
    fn never_is_no_restart_in_place() {
        let plan = made("{name: t, command: [a]}", "  restartPolicy: Never").unwrap();
        assert!(!plan.restart_in_place);
    }

    #[test]
    fn several_processes_differ_by_their_ranks_alone_and_a_launcher_is_started_once() {
        let each: Vec<Vec<(String, String)>> = ["2", "3"]
            .map(|rank| vec![("RANK".to_owned(), rank.to_owned()), ("WORLD_SIZE".to_owned(), "4".to_owned())])
            .to_vec();
        let several = |command: &str| {
            let job =
                job(&format!("{{name: t, command: [{command}], args: ['$(RANK)'], env: [{{name: A, value: a}}]}}"), "");
            blueprint(&job, &new_pod(), &each, None).unwrap().launch
        };
        let two = several("python, train.py");
        assert_eq!(
            (two.command[2].as_str(), two.env["RANK"].as_str(), two.env["WORLD_SIZE"].as_str()),
            ("2", "2", "4")
        );
        let second = Further {
            command: ["python", "train.py", "3"].map(str::to_owned).to_vec(),
            env: [("RANK".to_owned(), "3".to_owned())].into(),
        };
        assert_eq!(two.further, [second]);
        let once = several("torchrun, train.py");
        assert_eq!((once.env["RANK"].as_str(), once.further.len()), ("1", 0));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.sh"), "#!/bin/sh\nexec torchrun train.py\n").unwrap();
        let job = job("{name: t, command: [./run.sh]}", "");
        let further = |job: &Job| blueprint(job, &new_pod(), &each, Some(folder.path())).unwrap().launch.further.len();
        assert_eq!(further(&job), 0, "a script that calls it");
        let mut told = job.clone();
        told.object.spec.launcher = Some(Launcher::Agent);
        assert_eq!(further(&told), 1);
    }
}
