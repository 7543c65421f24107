//! The command that an image has: what is to be asked for, and how it is put into a container that names none.
//!
//! The rules are those of container runtimes: `args` replace CMD, `command` replaces ENTRYPOINT and CMD, and an
//! ENTRYPOINT of one empty word is none. What the user, the working directory and the environment are stays with the
//! runtime: the container has the same image as before.

use eto_api::ElasticJob;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde::Deserialize;

use crate::SpecProblems;
use crate::pod::stop;
use crate::template::{self, Role};

/// Most bytes that a command from an image may have, all words together: it is written into every pod.
pub const MAX_COMMAND: usize = 64 * 1024;
/// The label by which pods choose nodes of an architecture.
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Whose command is asked for, and who may ask: the same question has the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageQuestion {
    /// Of the job.
    pub namespace: String,
    /// As the container names it.
    pub image: String,
    /// As in Kubernetes' labels (`amd64`, `arm64`), where the pod demands one.
    pub architecture: Option<String>,
    /// Secrets that the pod pulls its images with, as its template names them.
    pub pull_secrets: Vec<String>,
    /// The account whose secrets a pod without any gets.
    pub service_account: String,
}

/// The part of an image's config that says what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    stop_signal: Option<&'static str>,
}

/// Why there is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageProblem {
    /// It was not read.
    #[error("is missing, and the image's own command is not known (any more); it is read again")]
    Unknown,
    /// Neither ENTRYPOINT nor CMD, nor arguments.
    #[error("is missing, and the image has neither ENTRYPOINT nor CMD; write the command into the template")]
    Empty,
    /// Larger than [`MAX_COMMAND`].
    #[error("the image's command has {bytes} bytes, more than {MAX_COMMAND}; write a shorter one into the template")]
    TooLong {
        /// All words together.
        bytes: usize,
    },
    /// No image config.
    #[error("the image's config can't be read: {0}")]
    Unreadable(String),
}

#[derive(Deserialize)]
struct File {
    config: Option<Execution>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Execution {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    // Whatever it is, it keeps no command from being read.
    stop_signal: Option<serde_json::Value>,
}

impl ImageConfig {
    /// Reads the JSON that an image's manifest names as its config.
    ///
    /// # Errors
    /// JSON of another kind, or a command that is too long.
    pub fn parse(json: &[u8]) -> Result<Self, ImageProblem> {
        let file: File = serde_json::from_slice(json).map_err(|e| {
            // Not what stands there: it comes from outside, and may be anything.
            ImageProblem::Unreadable(format!("it is not as it should be at line {}, column {}", e.line(), e.column()))
        })?;
        let Some(execution) = file.config else { return Ok(ImageConfig::default()) };
        let entrypoint = execution.entrypoint.unwrap_or_default();
        let entrypoint = if entrypoint == [""] { Vec::new() } else { entrypoint };
        let cmd = execution.cmd.unwrap_or_default();
        match entrypoint.iter().chain(&cmd).map(String::len).sum::<usize>() {
            bytes if bytes > MAX_COMMAND => Err(ImageProblem::TooLong { bytes }),
            _ => {
                let stop_signal = execution.stop_signal.as_ref().and_then(|s| s.as_str()).and_then(stop::known);
                Ok(ImageConfig { entrypoint, cmd, stop_signal })
            }
        }
    }

    /// STOPSIGNAL, where it is one that an agent can take.
    pub(crate) fn stop_signal(&self) -> Option<&'static str> {
        self.stop_signal
    }
}

/// Whether the container says itself what runs.
pub(crate) fn has_command(container: &Container) -> bool {
    container.command.as_ref().is_some_and(|c| !c.is_empty())
}

/// What is to be asked for the pod of this role; `None` where the template names a command, or is not there.
///
/// # Errors
/// What is wrong with the template.
pub fn question(job: &ElasticJob, role: Role<'_>) -> Result<Option<ImageQuestion>, SpecProblems> {
    let spec = template::merged(job, role)?.and_then(|t| t.spec);
    let namespace = job.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Ok(spec.and_then(|spec| asked(namespace, &spec)))
}

/// What is to be asked for all pods of a job: nothing, or up to one question for each template that it has.
///
/// # Errors
/// What is wrong with the templates.
pub fn questions(job: &ElasticJob) -> Result<Vec<ImageQuestion>, SpecProblems> {
    let mut all: Vec<ImageQuestion> = Vec::new();
    for role in Role::all(job) {
        all.extend(question(job, role)?.filter(|q| !all.contains(q)));
    }
    Ok(all)
}

fn asked(namespace: String, spec: &PodSpec) -> Option<ImageQuestion> {
    let container = spec.containers.first().filter(|c| !has_command(c))?;
    let secrets = spec.image_pull_secrets.iter().flatten().map(|s| s.name.clone()).filter(|n| !n.is_empty());
    Some(ImageQuestion {
        namespace,
        image: container.image.clone().unwrap_or_default(),
        architecture: spec.node_selector.as_ref().and_then(|s| s.get(ARCHITECTURE)).cloned(),
        pull_secrets: secrets.collect(),
        service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned()),
    })
}

/// Gives the container what its image would run: the same words, now written out.
pub(crate) fn complete(container: &mut Container, image: &ImageConfig) -> Result<(), ImageProblem> {
    let has_args = container.args.as_ref().is_some_and(|a| !a.is_empty());
    if image.entrypoint.is_empty() && image.cmd.is_empty() && !has_args {
        return Err(ImageProblem::Empty);
    }
    container.command = Some(literal(&image.entrypoint));
    if !has_args {
        container.args = Some(literal(&image.cmd)).filter(|a| !a.is_empty());
    }
    Ok(())
}

/// Kubernetes replaces `$(NAME)` in what a pod says, not in what an image says; `$$` is a `$` to it.
fn literal(words: &[String]) -> Vec<String> {
    words.iter().map(|w| w.replace('$', "$$")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    /// What the container says at the end; `None` = there is nothing to run.
    fn completed(config: &Value, container: &Value) -> Option<(Vec<String>, Vec<String>)> {
        let image = ImageConfig::parse(&serde_json::to_vec(&json!({"config": config})).unwrap()).unwrap();
        let mut container: Container = serde_json::from_value(container.clone()).unwrap();
        complete(&mut container, &image).ok()?;
        Some((container.command.unwrap_or_default(), container.args.unwrap_or_default()))
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn an_image_runs_what_a_runtime_would_run() {
        let none = json!({"name": "c"});
        let args = json!({"name": "c", "args": ["--lr", "1"]});
        for (config, container, command, arguments) in [
            // As the guide's Dockerfile: CMD ["python", "train.py"].
            (json!({"Cmd": ["python", "train.py"]}), &none, "", "python train.py"),
            (json!({"Entrypoint": ["python", "train.py"]}), &none, "python train.py", ""),
            (json!({"Entrypoint": ["python"], "Cmd": ["train.py"]}), &none, "python", "train.py"),
            (json!({"Entrypoint": ["python"], "Cmd": ["train.py"]}), &args, "python", "--lr 1"),
            (json!({"Cmd": ["train"]}), &args, "", "--lr 1"),
            (json!({"Entrypoint": [""], "Cmd": ["train"]}), &none, "", "train"),
            (json!({"Entrypoint": null, "Cmd": ["train"]}), &none, "", "train"),
            (json!({}), &args, "", "--lr 1"),
        ] {
            let want = Some((words(command), words(arguments)));
            assert_eq!(completed(&config, container), want, "{config} {container}");
        }
        let shell = json!({"Cmd": ["/bin/sh", "-c", "exec python train.py --data $DATA $(date)"]});
        let (_, arguments) = completed(&shell, &none).unwrap();
        assert_eq!(arguments[2], "exec python train.py --data $$DATA $$(date)", "not Kubernetes' to replace");
    }

    #[test]
    fn nothing_to_run_is_told() {
        for config in [json!({}), json!({"Entrypoint": [], "Cmd": []}), json!({"Entrypoint": [""]}), Value::Null] {
            assert_eq!(completed(&config, &json!({"name": "c"})), None, "{config}");
        }
        assert_eq!(ImageConfig::parse(b"{}"), Ok(ImageConfig::default()));
        assert!(matches!(ImageConfig::parse(b"<html>"), Err(ImageProblem::Unreadable(_))));
        assert!(matches!(ImageConfig::parse(br#"{"config": {"Cmd": "train"}}"#), Err(ImageProblem::Unreadable(_))));
        let long = json!({"config": {"Cmd": ["x".repeat(MAX_COMMAND), "y"]}}).to_string();
        assert_eq!(ImageConfig::parse(long.as_bytes()), Err(ImageProblem::TooLong { bytes: MAX_COMMAND + 1 }));
    }

    #[test]
    fn what_is_asked_is_what_the_pod_will_pull() {
        let job: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"name": "train", "namespace": "team"},
            "spec": {
                "template": {"spec": {
                    "nodeSelector": {"kubernetes.io/arch": "arm64"},
                    "imagePullSecrets": [{"name": "robot"}],
                    "containers": [{"name": "main", "image": "registry.example/train:1"}],
                }},
                "master": {"template": {"spec": {
                    "serviceAccountName": "builder",
                    "containers": [{"name": "main", "image": "train"}],
                }}},
            },
        }))
        .unwrap();
        let question = |architecture: Option<&str>, image: &str, secrets: &[&str], account: &str| ImageQuestion {
            namespace: "team".into(),
            image: image.into(),
            architecture: architecture.map(str::to_owned),
            pull_secrets: secrets.iter().map(|s| (*s).to_owned()).collect(),
            service_account: account.into(),
        };
        let worker = question(Some("arm64"), "registry.example/train:1", &["robot"], "default");
        let master = question(None, "train", &[], "builder");
        assert_eq!(questions(&job).unwrap(), [worker, master]);
        let mut commanded = job;
        commanded.spec.master = None;
        commanded.spec.template.as_mut().unwrap()["spec"]["containers"][0]["command"] = json!(["python"]);
        assert_eq!(questions(&commanded).unwrap(), []);
    }
}
