//! The documents say what is: names they list exist, and what exists is listed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, reason = "reads the repository's documents")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Names of the variants of an enum, as its source has them.
fn variants(source: &str, name: &str) -> Vec<String> {
    let text = read(source);
    let head = format!("pub enum {name} {{");
    let (_, rest) = text.split_once(&head).unwrap_or_else(|| panic!("{source} has no `{head}`"));
    let (body, _) = rest.split_once("\n}").unwrap();
    let names: Vec<String> = body
        .lines()
        .map(str::trim)
        .filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|l| l.chars().take_while(char::is_ascii_alphanumeric).collect())
        .collect();
    assert!(names.len() > 3, "{source}: {name} was not read: {names:?}");
    names
}

/// What stands between backticks, outside code blocks.
fn code_words(document: &str) -> BTreeSet<String> {
    let text = read(document);
    let mut outside = true;
    let mut words = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            outside = !outside;
        } else if outside {
            words.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    words
}

fn missing(names: &[String], words: &BTreeSet<String>) -> Vec<String> {
    names.iter().filter(|n| !words.contains(*n)).cloned().collect()
}

#[test]
fn troubleshooting_lists_every_reason_limiter_and_failure() {
    let words = code_words("docs/troubleshooting.md");
    for (source, name) in [
        ("core/engine/src/state/condition.rs", "ConditionKind"),
        ("core/engine/src/state/condition.rs", "ConditionReason"),
        ("core/engine/src/decision.rs", "Limiter"),
        ("core/engine/src/policy.rs", "FailureKind"),
        ("core/policy-host/src/error.rs", "LoadError"),
    ] {
        let missing = missing(&variants(source, name), &words);
        assert!(missing.is_empty(), "docs/troubleshooting.md does not speak of {name}: {missing:?}");
    }
}

#[test]
fn the_user_guide_lists_every_phase() {
    let text = read("docs/user-guide.md");
    let missing: Vec<String> =
        variants("core/engine/src/state.rs", "Phase").into_iter().filter(|p| !text.contains(p.as_str())).collect();
    assert!(missing.is_empty(), "docs/user-guide.md does not speak of {missing:?}");
}

/// A counter `x` is served as `x_total`.
#[test]
fn metrics_that_operations_names_exist() {
    let telemetry = read("core/operator/src/telemetry.rs") + &read("core/gateway/src/metrics.rs");
    let agent = read("core/agent/src/metrics.rs");
    let words = &code_words("docs/operations.md") | &code_words("docs/membership.md");
    let named: Vec<&str> = words
        .iter()
        .flat_map(|w| w.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|w| w.starts_with("eto_"))
        .collect();
    assert!(named.len() > 5, "no metrics were found in the documents");
    for name in named {
        let (served, registered) = match name.strip_prefix("eto_agent_") {
            Some(rest) => (&agent, rest),
            None => (&telemetry, name.trim_start_matches("eto_").trim_end_matches("_total")),
        };
        assert!(
            served.contains(&format!("\"{registered}\"")),
            "docs/operations.md or docs/membership.md names {name}, which is not served"
        );
    }
}

#[test]
fn settings_that_documents_name_exist() {
    let help = read("core/operator/src/settings/help.rs");
    let sections: BTreeSet<&str> =
        help.split('"').filter_map(|w| w.split_once('.')).map(|(s, _)| s).filter(|s| !s.contains(' ')).collect();
    let mut seen = 0;
    for document in
        ["docs/operations.md", "docs/troubleshooting.md", "docs/teams.md", "docs/user-guide.md", "docs/signals.md"]
    {
        for word in code_words(document) {
            let key = word.strip_prefix("settings.").unwrap_or(&word);
            let Some((section, name)) = key.split_once('.') else { continue };
            let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            // `policies.volume` and `policies.configMap` are values of the chart.
            if !sections.contains(section) || !plain || key == "policies.volume" {
                continue;
            }
            assert!(help.contains(&format!("\"{key}\"")), "{document} names the setting {key}, which does not exist");
            seen += 1;
        }
    }
    assert!(seen > 5, "no settings were found in the documents");
}

/// The sources of all tests, with the Python ones.
fn test_sources() -> String {
    let all = [files("core", "rs"), files("tests", "rs"), files("tests", "py")].concat();
    all.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// A row of the faults, or of what users reported, that names a test is shown by it.
#[test]
fn tests_that_documents_name_exist() {
    let sources = test_sources();
    for document in ["docs/faults.md", "docs/reported.md"] {
        let words = code_words(document);
        let named: Vec<&str> =
            words.iter().filter_map(|w| w.rsplit_once("::")).map(|(_, n)| n).filter(|n| !n.is_empty()).collect();
        assert!(named.len() > 30, "only {} tests were found in {document}", named.len());
        for name in named {
            let there = ["fn", "def"].iter().any(|word| sources.contains(&format!("{word} {name}(")));
            assert!(there, "{document} names the test {name}, which does not exist");
        }
    }
}

/// The name of a test of something that was reported has the threads' numbers in it; the list has both.
#[test]
fn what_was_reported_is_listed_with_its_tests() {
    let text = read("docs/reported.md");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|l| l.starts_with("| ") && l.contains('#'))
        .map(|l| l.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 45, "only {} rows were found", rows.len());
    for row in &rows {
        let [threads, _, here, test] = row[..] else { panic!("four columns: {row:?}") };
        let first: String =
            threads.split('#').nth(1).unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        assert!(!here.is_empty() && (test.is_empty() || test.contains(&format!("_{first}"))), "{row:?}");
    }
    let listed = code_words("docs/reported.md");
    for path in files("core/engine/tests/it/reported", "rs") {
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        for test in source.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name) {
            assert!(listed.contains(&format!("{file}::{test}")), "docs/reported.md does not list {file}::{test}");
        }
    }
}

/// A module's name is that of its file, so a command that names one has to name a legal one.
#[test]
fn modules_in_the_documents_have_names_that_can_be_served() {
    let mut seen = 0;
    for path in [files("docs", "md"), vec![root().join("README.md"), root().join("policies/README.md")]].concat() {
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let Some((_, command)) = line.split_once("eto policy ") else { continue };
            let Some(module) = command.split_whitespace().find_map(|word| word.trim_matches('`').strip_suffix(".wasm"))
            else {
                continue;
            };
            let name = module.rsplit('/').next().unwrap_or_default();
            // `NAME.wasm` stands for one.
            let legal = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            assert!(legal || name == "NAME", "{}: `{name}` can't name a policy: {line}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 3, "only {seen} modules were found");
}

/// Client-side apply keeps the whole object in an annotation, which a module does not fit into.
#[test]
fn modules_in_the_documents_are_applied_server_side() {
    let mut seen = 0;
    for path in files("docs", "md") {
        let text = std::fs::read_to_string(&path).unwrap();
        for command in text.split("kubectl create configmap ").skip(1) {
            let command = command.split("```").next().unwrap_or_default();
            assert!(command.contains("apply --server-side"), "{}: {command}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 1, "only {seen} such commands were found");
}

/// The YAML documents of a file: the file itself, or the `yaml` blocks of a Markdown page.
fn yaml_documents(path: &Path) -> Vec<serde_yaml::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<String> = if path.extension().is_some_and(|e| e == "md") {
        text.split("```yaml\n").skip(1).map(|b| b.split("```").next().unwrap_or_default().to_owned()).collect()
    } else {
        vec![text]
    };
    let parse = |block: &String| {
        serde_yaml::Deserializer::from_str(block)
            .map(|d| {
                serde::Deserialize::deserialize(d)
                    .unwrap_or_else(|e| panic!("{}: not YAML: {e}\n{block}", path.display()))
            })
            .collect::<Vec<serde_yaml::Value>>()
    };
    blocks.iter().flat_map(parse).collect()
}

/// All files of a folder and of those below it that end so.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no .{extension}");
    found.sort();
    found
}

/// Whether a line of YAML, or code of a text, has a value that YAML 1.1 (kubectl) reads as something else than the text it
/// looks like: `Off` is false, and `20:00` is 1200.
fn misread(code: &str, is_yaml: bool) -> bool {
    let code = code.split(" #").next().unwrap_or_default();
    code.split([',', '{', '}', '[', ']']).any(|piece| {
        let (value, is_value) = match piece.rsplit_once(": ") {
            Some((_, value)) => (value, true),
            None => (piece.trim().trim_start_matches("- "), is_yaml),
        };
        let value = value.trim();
        let is_word = ["yes", "no", "on", "off"].contains(&value.to_ascii_lowercase().as_str());
        let is_time = || value.split(':').count() > 1 && value.split(':').all(|part| part.parse::<u32>().is_ok());
        is_word || (is_value && is_time())
    })
}

#[test]
fn no_value_in_the_documents_and_examples_is_misread_by_kubectl() {
    for (code, is_yaml) in [("mode: Off", false), ("Off", false), ("- {at: 20:00, size: 1}", true), ("- no", true)] {
        assert!(misread(code, is_yaml), "{code}");
    }
    for code in ["mode: \"Off\"", "from: \"20:00\" # 8 pm", "24:00", "image: a:1"] {
        assert!(!misread(code, false), "{code}");
    }
    let mut wrong = Vec::new();
    let yaml = [files("examples", "yaml"), files("tests/guide", "yaml")].concat();
    let pages =
        [files("docs", "md"), files("policies", "md"), files("deploy", "md"), vec![root().join("README.md")]].concat();
    for path in yaml.iter().chain(&pages) {
        let page = pages.contains(path);
        let mut block = if page { "" } else { "yaml" };
        for (at, line) in std::fs::read_to_string(path).unwrap().lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```").filter(|_| page) {
                block = match (block, language) {
                    ("", "yaml") => "yaml",
                    ("", _) => "other",
                    _ => "",
                };
                continue;
            }
            let is_wrong = match block {
                "yaml" => misread(line, true),
                "" => line.split('`').skip(1).step_by(2).any(|code| misread(code, false)),
                _ => false,
            };
            if is_wrong {
                wrong.push(format!("{}:{}: {line}", path.display(), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "in quotes, or kubectl reads it as something else:\n{}", wrong.join("\n"));
}

/// What a fragment that begins with `spec:` is a part of.
const REST: &str = "{apiVersion: elastic.ai/v1alpha1, kind: ElasticJob, metadata: {name: fragment},
  spec: {template: {spec: {containers: [{name: main, image: 'a:1', resources: {requests: {cpu: 1}}}]}}}}";

/// The ElasticJob that a document is, or is a fragment of.
fn elastic_job(document: &serde_yaml::Value) -> Option<serde_yaml::Value> {
    if document.get("kind").is_some_and(|k| k == "ElasticJob") {
        return Some(document.clone());
    }
    let fragment = document.get("spec").filter(|_| document.get("kind").is_none())?;
    let mut whole: serde_yaml::Value = serde_yaml::from_str(REST).unwrap();
    for (key, value) in fragment.as_mapping()? {
        whole["spec"][key] = value.clone();
    }
    Some(whole)
}

#[test]
fn every_job_in_the_documents_and_examples_is_valid() {
    let mut seen = 0;
    let all = [
        files("docs", "md"),
        files("examples/jobs", "yaml"),
        files("examples/pytorch", "yaml"),
        files("examples/jax", "yaml"),
        files("examples/tensorflow", "yaml"),
        vec![root().join("README.md")],
    ]
    .concat();
    for path in all {
        for job in yaml_documents(&path).iter().filter_map(elastic_job) {
            let job: eto_api::ElasticJob =
                serde_yaml::from_value(job).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            if let Err(problems) = eto_cycle::spec::job_spec(&job) {
                panic!("{}: {problems}\n{job:?}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} jobs were found");
}
