//! Reading the job: from a YAML file to an `ElasticJob` as an API server would hold it.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use eto_api::ElasticJob;
use eto_cycle::spec::job_spec;
use eto_cycle::{SpecProblem, SpecProblems};
use eto_engine::job::JobSpec;
use eto_engine::time::Time;
use eto_membership::agent::beginning;
use serde::Deserialize;

/// Why there is no job to run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the job file {path} can't be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is not YAML: {message}")]
    NotYaml { path: PathBuf, message: String },
    #[error("{path} has {found} objects of kind ElasticJob, and exactly one is needed{there}")]
    NotOneJob {
        path: PathBuf,
        found: usize,
        /// The kinds that are there instead, told where there is no job at all.
        there: String,
    },
    #[error("{path} is not an ElasticJob that can be run:\n{problems}")]
    Invalid { path: PathBuf, problems: String },
}

/// A job as it was read and as the engine sees it.
#[derive(Clone, Debug)]
pub struct Job {
    pub object: ElasticJob,
    pub spec: JobSpec,
}

/// Reads the one `ElasticJob` of a file (other objects in it are passed over); `-` reads standard input.
pub fn job(path: &Path, now: Time) -> Result<Job, LoadError> {
    let text = read(path).map_err(|source| LoadError::Unreadable { path: path.to_path_buf(), source })?;
    parse(path, &text, now)
}

/// Longest job file, in bytes: far more than an API server takes. What never ends must not take the machine's memory.
const MAX_FILE: u64 = 16 * 1024 * 1024;

fn read(path: &Path) -> io::Result<String> {
    let from: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(std::fs::File::open(path)?) };
    let mut bytes = Vec::new();
    from.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it is longer than {MAX_FILE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))?;
    // Some editors put a byte order mark first, which the parser takes for a document.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The beginning of a file that a command names, from `directory` on; `None` where there is none. Pipes are left alone:
/// opening one would wait for who writes it.
pub(crate) fn script(directory: Option<&Path>, name: &str) -> Option<String> {
    let path = directory.unwrap_or(Path::new("")).join(name);
    beginning(std::fs::File::open(Some(path).filter(|p| p.is_file())?).ok()?)
}

/// Most brackets open at once. The parser takes a time that grows with their square before it refuses them; scripts in
/// strings may hold a few that are never closed.
const MAX_OPEN: usize = 2000;

fn too_deep(text: &str) -> bool {
    let mut open = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_OPEN
    })
}

/// The same for text that is there already; `path` is for messages.
pub fn parse(path: &Path, text: &str, now: Time) -> Result<Job, LoadError> {
    let not_yaml = |error: serde_yaml::Error| {
        let message = error.to_string();
        let is_number = message.contains(" as u128") || message.contains(" as i128");
        let message = if is_number { "a number in it is out of any range".to_owned() } else { message };
        LoadError::NotYaml { path: path.into(), message }
    };
    if too_deep(text) {
        let message = format!("more than {MAX_OPEN} brackets are open at once");
        return Err(LoadError::NotYaml { path: path.into(), message });
    }
    let (mut jobs, mut others) = (Vec::new(), BTreeSet::new());
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut value = serde_yaml::Value::deserialize(document).map_err(not_yaml)?;
        value.apply_merge().map_err(not_yaml)?;
        for object in objects(value) {
            match kind(&object) {
                Some("ElasticJob") => jobs.push(object),
                other => others.extend(other.map(str::to_owned)),
            }
        }
    }
    let found = jobs.len();
    let (Some(value), 1) = (jobs.pop(), found) else {
        let there = match found {
            0 if !others.is_empty() => {
                format!("; the kinds in it are: {}", Vec::from_iter(others).join(", "))
            }
            0 if text.trim().is_empty() => "; it is empty".to_owned(),
            0 => "; nothing in it has a `kind`".to_owned(),
            _ => String::new(),
        };
        return Err(LoadError::NotOneJob { path: path.into(), found, there });
    };
    let invalid = |problems: SpecProblems| {
        let lines: Vec<String> = problems.0.iter().map(|p| format!("  {}: {}", p.path, p.message)).collect();
        LoadError::Invalid { path: path.into(), problems: lines.join("\n") }
    };
    let mut problems = SpecProblems::default();
    no_numbers("", &value, &mut problems);
    if !problems.is_empty() {
        return Err(invalid(problems));
    }
    let value: serde_json::Value = serde_yaml::from_value(value).map_err(not_yaml)?;
    if let Some(problems) = other_version(&value) {
        return Err(invalid(problems));
    }
    let unknown = eto_cycle::unknown::fields(&value);
    if !unknown.is_empty() {
        return Err(invalid(unknown));
    }
    let mut object: ElasticJob = eto_api::decode("", &value)
        .map_err(|misfit| invalid(SpecProblems(vec![SpecProblem { path: misfit.path, message: misfit.why }])))?;
    // What the API server would have filled in.
    let metadata = &mut object.metadata;
    metadata.namespace.get_or_insert_with(|| "default".to_owned());
    metadata.uid.get_or_insert_with(|| format!("local-{}", now.0));
    metadata.generation.get_or_insert(1);
    object.status = None;
    let mut spec = job_spec(&object).map_err(invalid)?;
    spec.created = now;
    Ok(Job { object, spec })
}

fn kind(object: &serde_yaml::Value) -> Option<&str> {
    object.get("kind").and_then(serde_yaml::Value::as_str)
}

/// What a document holds: itself, or what is in a `List`, as `kubectl get -o yaml` writes several.
fn objects(document: serde_yaml::Value) -> Vec<serde_yaml::Value> {
    match document.get("items") {
        Some(serde_yaml::Value::Sequence(items)) if kind(&document) == Some("List") => items.clone(),
        _ => vec![document],
    }
}

/// Numbers that YAML has and JSON has not. An API server never sees one; here it would be taken for a field that is not
/// there.
fn no_numbers(path: &str, value: &serde_yaml::Value, problems: &mut SpecProblems) {
    match value {
        serde_yaml::Value::Number(number) if !number.is_finite() => {
            let message = format!("is {number}; write a finite number, or leave the field out");
            problems.0.push(SpecProblem { path: path.trim_start_matches('.').to_owned(), message });
        }
        serde_yaml::Value::Sequence(items) => {
            for (i, item) in items.iter().enumerate() {
                no_numbers(&format!("{path}[{i}]"), item, problems);
            }
        }
        serde_yaml::Value::Mapping(map) => {
            for (key, inner) in map {
                no_numbers(&format!("{path}.{}", key.as_str().unwrap_or("?")), inner, problems);
            }
        }
        serde_yaml::Value::Tagged(tagged) => no_numbers(path, &tagged.value, problems),
        _ => {}
    }
}

/// A job of another API version would be refused by an API server, and its fields may mean something else.
fn other_version(job: &serde_json::Value) -> Option<SpecProblems> {
    let crd = eto_api::crd();
    let served: Vec<String> = crd.spec.versions.iter().map(|v| format!("{}/{}", crd.spec.group, v.name)).collect();
    let written = job.get("apiVersion").and_then(serde_json::Value::as_str).unwrap_or_default();
    if served.iter().any(|version| version == written) {
        return None;
    }
    let message = format!("is \"{written}\"; write {}", served.join(" or "));
    Some(SpecProblems(vec![SpecProblem { path: "apiVersion".to_owned(), message }]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: elastic.ai/v1alpha1\nkind: ElasticJob\nmetadata: {name: j}\nspec: {replicas: 2, \
                       maxReplicas: 4, template: {spec: {containers: [{name: t, command: [a]}]}}}\n";

    fn read(text: &str) -> Result<Job, LoadError> {
        parse(Path::new("job.yaml"), text, Time(5))
    }

    #[test]
    fn a_job_is_found_among_other_objects_and_its_defaults_are_filled_in() {
        let job = read(&format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n---\n{JOB}")).unwrap();
        assert_eq!((job.spec.key.to_string().as_str(), job.spec.max), ("default/j", 4));
        assert_eq!((job.spec.created, job.spec.generation), (Time(5), 1));
        assert!(!job.spec.uid.is_empty());
    }

    #[test]
    fn merge_keys_and_a_byte_order_mark_are_read_as_kubectl_reads_them() {
        let merged =
            JOB.replace("metadata: {name: j}", "metadata: {name: j, annotations: &a {x: y}, labels: {<<: *a}}");
        let job = read(&merged).unwrap();
        assert_eq!(job.object.metadata.labels, job.object.metadata.annotations);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("\u{feff}{JOB}")).unwrap();
        assert_eq!(super::job(file.path(), Time(0)).unwrap().spec.max, 4);
    }

    #[test]
    fn a_list_holds_its_objects() {
        let list = |items: &str| format!("apiVersion: v1\nkind: List\nitems: [{items}]\n");
        let one = "{apiVersion: elastic.ai/v1alpha1, kind: ElasticJob, metadata: {name: l}, spec: {template: {spec: \
                   {containers: [{name: t, command: [a]}]}}}}";
        let job = read(&list(&format!("{{apiVersion: v1, kind: ConfigMap}}, {one}"))).unwrap();
        assert_eq!(job.spec.key.to_string(), "default/l");
        assert!(matches!(read(&list(&format!("{one}, {one}"))), Err(LoadError::NotOneJob { found: 2, .. })));
        assert!(matches!(read("kind: List\nitems: 5\n"), Err(LoadError::NotOneJob { found: 0, .. })));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        assert!(matches!(read("a: [b"), Err(LoadError::NotYaml { .. })));
        // Takes minutes if the parser sees it.
        let deep = read(&format!("kind: ElasticJob\nspec: {}", "[".repeat(300_000))).unwrap_err().to_string();
        assert!(deep.contains("job.yaml") && deep.contains("brackets"), "{deep}");
        read(&format!("# {}\n{JOB}", "[".repeat(100))).unwrap();
        let error = read("kind: Job\n---\nkind: ConfigMap\n").unwrap_err().to_string();
        assert!(error.contains("has 0 objects of kind ElasticJob"), "{error}");
        assert!(error.ends_with("; the kinds in it are: ConfigMap, Job"), "{error}");
        assert!(read("").unwrap_err().to_string().ends_with("; it is empty"));
        assert!(read("[a]").unwrap_err().to_string().ends_with("; nothing in it has a `kind`"));
        let error = read(&JOB.replace("replicas: 2", "replicas: 99999999999999999999")).unwrap_err().to_string();
        assert!(error.contains("out of any range") && !error.contains("u128"), "{error}");
        assert!(matches!(read(&format!("{JOB}---\n{JOB}")), Err(LoadError::NotOneJob { found: 2, .. })));
        let error = read(&JOB.replace("replicas: 2", "replicas: 9")).unwrap_err().to_string();
        assert!(error.contains("job.yaml") && error.contains("spec.replicas"), "{error}");
        let error = read(&JOB.replace("maxReplicas", "maxReplica")).unwrap_err().to_string();
        assert!(error.contains("spec.maxReplica") && error.contains("did you mean `maxReplicas`"), "{error}");
        let error = read(&JOB.replace("command", "comand")).unwrap_err().to_string();
        assert!(
            error.contains("spec.template.spec.containers[0].comand") && error.contains("mean `command`"),
            "{error}"
        );
        let error = read(&JOB.replace("v1alpha1", "v1")).unwrap_err().to_string();
        assert!(error.contains("apiVersion: is \"elastic.ai/v1\"; write elastic.ai/v1alpha1"), "{error}");
        let error = read(&JOB.replace("name: j", "name: 5")).unwrap_err().to_string();
        assert!(error.contains("\n  metadata.name: must be text, in quotes, and is a number"), "{error}");
        let error = read(&JOB.replace("replicas: 2", "replicas: .nan")).unwrap_err().to_string();
        assert!(error.contains("\n  spec.replicas: is .nan; write a finite number"), "{error}");
        let error = read(&JOB.replace("[a]", "[a, -.inf]")).unwrap_err().to_string();
        assert!(error.contains("\n  spec.template.spec.containers[0].command[1]: is -.inf;"), "{error}");
        for file in ["/no/such/file", "/dev/zero", "/"] {
            assert!(matches!(job(Path::new(file), Time(0)), Err(LoadError::Unreadable { .. })), "{file}");
        }
    }
}
