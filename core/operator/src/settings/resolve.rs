//! File, environment and flags become one [`Settings`].

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::keys::{KEYS, Key, nearest};
use super::{Place, Settings, SettingsError};

/// What was read, before it is understood. Adapters fill it; the rest is pure.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Path and text of the settings file, if there is one.
    pub file: Option<(String, String)>,
    /// The environment; variables that do not begin with `ETO_` are passed over.
    pub environment: Vec<(String, String)>,
}

/// Variables that are no settings; the last is `eto run`'s.
const OTHER_VARIABLES: &[&str] = &["ETO_CONFIG", "ETO_BUILTIN_POLICIES"];

/// The command line: a flag for every setting, and a few of its own.
pub fn command() -> Command {
    let mut command = Command::new("elastic-training-operator")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Sizes and places elastic training jobs on Kubernetes, by WebAssembly policies")
        .arg(Arg::new("config").long("config").env("ETO_CONFIG").value_name("FILE").help("Settings file (TOML)"))
        .arg(
            Arg::new("print-settings")
                .long("print-settings")
                .action(ArgAction::SetTrue)
                .help("Print the resolved settings, secrets hidden, and end"),
        );
    for key in KEYS.iter() {
        command = command.arg(
            Arg::new(key.path.as_str())
                .long(key.flag.as_str())
                .value_name("VALUE")
                .help(key.help.as_str())
                .help_heading(key.section.as_str()),
        );
    }
    command
}

/// Resolves the settings: defaults, then the file, then the environment, then flags.
pub fn resolve(source: &Source, flags: &ArgMatches) -> Result<Settings, SettingsError> {
    let keys = &*KEYS;
    // Where each value came from, so that an error found late still says where to look.
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    let mut table = Table::new();
    if let Some((path, text)) = &source.file {
        read_file(path, text, keys, &mut table, &mut places)?;
    }
    for (name, text) in &source.environment {
        if let Some(key) = variable(name, keys)? {
            put(key, text, Place::Environment(name.clone()), &mut table, &mut places)?;
        }
    }
    for key in keys {
        if let Some(text) = flags.get_one::<String>(&key.path) {
            put(key, text, Place::Flag(format!("--{}", key.flag)), &mut table, &mut places)?;
        }
    }
    // One value at a time first: a wrong one is then named with its place.
    for key in keys {
        let Some(value) = table.get(&key.section).and_then(|s| s.get(&key.name)) else { continue };
        let alone = Table::from_iter([(
            key.section.clone(),
            Value::Table(Table::from_iter([(key.name.clone(), value.clone())])),
        )]);
        if let Err(e) = Settings::deserialize_table(alone) {
            let place = places.get(&key.path).cloned().unwrap_or(Place::Resolved);
            return Err(SettingsError::BadValue { place, key: key.path.clone(), value: value.to_string(), message: e });
        }
    }
    let settings = Settings::deserialize_table(table).map_err(SettingsError::Inconsistent)?;
    settings.check()?;
    Ok(settings)
}

impl Settings {
    fn deserialize_table(table: Table) -> Result<Settings, String> {
        table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
    }
}

fn put(
    key: &Key,
    text: &str,
    place: Place,
    table: &mut Table,
    places: &mut BTreeMap<String, Place>,
) -> Result<(), SettingsError> {
    let value = key.parse(text).map_err(|message| SettingsError::BadValue {
        place: place.clone(),
        key: key.path.clone(),
        value: format!("`{text}`"),
        message,
    })?;
    insert(table, &key.section, &key.name, value);
    places.insert(key.path.clone(), place);
    Ok(())
}

fn insert(table: &mut Table, section: &str, name: &str, value: Value) {
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(section) = section {
        section.insert(name.to_owned(), value);
    }
}

/// The setting a variable stands for; `None` if it is none of ours.
fn variable<'k>(name: &str, keys: &'k [Key]) -> Result<Option<&'k Key>, SettingsError> {
    if !name.starts_with("ETO_") || OTHER_VARIABLES.contains(&name) || is_service_link(name) {
        return Ok(None);
    }
    if let Some(key) = keys.iter().find(|k| k.variable == name) {
        return Ok(Some(key));
    }
    Err(SettingsError::UnknownKey {
        place: Place::Environment(name.to_owned()),
        key: name.to_owned(),
        near: nearest(name, keys.iter().map(|k| k.variable.as_str())),
    })
}

/// Kubernetes sets variables for every Service of the namespace; one called `eto-...` must not stop the operator.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || name.ends_with("_PORT")
}

fn read_file(
    path: &str,
    text: &str,
    keys: &[Key],
    table: &mut Table,
    places: &mut BTreeMap<String, Place>,
) -> Result<(), SettingsError> {
    let at = |offset: usize| Place::File {
        path: path.to_owned(),
        line: text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1,
    };
    let syntax = |e: toml::de::Error| SettingsError::Syntax {
        place: at(e.span().map_or(0, |s| s.start)),
        message: e.message().to_owned(),
    };
    let spans: Spanned<DeTable<'_>> = DeTable::parse(text).map_err(syntax)?;
    let values: Table = toml::from_str(text).map_err(syntax)?;
    for (section, content) in spans.get_ref() {
        let name: &str = section.get_ref();
        let unknown = |key: String, offset: usize| {
            let sections = keys.iter().map(|k| k.section.as_str());
            let near = nearest(&key, keys.iter().map(|k| k.path.as_str()).chain(sections));
            SettingsError::UnknownKey { place: at(offset), key, near }
        };
        if !keys.iter().any(|k| k.section == name) {
            return Err(unknown(name.to_owned(), section.span().start));
        }
        let DeValue::Table(entries) = content.get_ref() else {
            return Err(SettingsError::BadValue {
                place: at(section.span().start),
                key: name.to_owned(),
                value: values.get(name).map(ToString::to_string).unwrap_or_default(),
                message: format!("expected a section; write [{name}] and the settings below it"),
            });
        };
        for entry in entries.keys() {
            let setting: &str = entry.get_ref();
            let Some(key) = keys.iter().find(|k| k.section == name && k.name == setting) else {
                return Err(unknown(format!("{name}.{setting}"), entry.span().start));
            };
            if let Some(value) = values.get(name).and_then(|s| s.get(setting)) {
                insert(table, &key.section, &key.name, value.clone());
                places.insert(key.path.clone(), at(entry.span().start));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_cycle::log::KeepInputs;

    use super::*;

    fn resolved(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Settings, SettingsError> {
        let source = Source {
            file: Some(("settings.toml".into(), file.into())),
            environment: environment.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        };
        let flags = command().get_matches_from(std::iter::once("operator").chain(flags.iter().copied()));
        resolve(&source, &flags)
    }

    #[test]
    fn flags_win_over_environment_over_file() {
        let file =
            "[evaluation]\nperiod = \"10s\"\nthreads = 3\n[prometheus]\nurl = \"http://file\"\ntimeout = \"3s\"\n";
        let environment = [("ETO_EVALUATION_PERIOD", "5s"), ("ETO_PROMETHEUS_URL", "http://env"), ("HOME", "/")];
        let got = resolved(file, &environment, &["--evaluation-period", "2s"]).unwrap();
        assert_eq!(got.evaluation.period.to_string(), "2s");
        assert_eq!(got.evaluation.threads, 3);
        assert_eq!(got.prometheus.url, "http://env");
        assert_eq!(got.prometheus.timeout.to_string(), "3s");
    }

    #[test]
    fn a_wrong_key_names_its_place_and_the_nearest_right_one() {
        let said = |file: &str, env: &[(&str, &str)]| resolved(file, env, &[]).unwrap_err().to_string();
        assert_eq!(
            said("[prometheus]\ntimeout = \"3s\"\nulr = \"x\"\n", &[]),
            "settings.toml, line 3: there is no setting `prometheus.ulr`; did you mean `prometheus.url`?"
        );
        assert_eq!(
            said("[promethius]\n", &[]),
            "settings.toml, line 1: there is no setting `promethius`; did you mean `prometheus`?"
        );
        assert_eq!(
            said("", &[("ETO_PROMETHEUS_ULR", "x")]),
            "environment variable ETO_PROMETHEUS_ULR: there is no setting `ETO_PROMETHEUS_ULR`; did you mean `ETO_PROMETHEUS_URL`?"
        );
        assert!(said("[log]\nqwertz = 1\n", &[]).contains("`--print-settings` lists all of them"));
    }

    #[test]
    fn a_wrong_value_names_its_place() {
        let said = |file: &str, env: &[(&str, &str)]| resolved(file, env, &[]).unwrap_err().to_string();
        let text = said("[evaluation]\nperiod = \"soon\"\n", &[]);
        assert!(text.starts_with("settings.toml, line 2: `evaluation.period` = \"soon\": not a duration"), "{text}");
        let text = said("[leader]\nduration = 5\n", &[]);
        assert_eq!(
            text,
            "settings.toml, line 2: `leader.duration` = 5: invalid type: integer `5`, expected a duration with its unit in \
             quotes: \"500ms\", \"15s\", \"2m\" or \"1h30m\""
        );
        let text = said("", &[("ETO_LEADER_ENABLED", "perhaps")]);
        assert!(text.starts_with("environment variable ETO_LEADER_ENABLED: `leader.enabled` = `perhaps`"), "{text}");
        let text = said("[evaluation\n", &[]);
        assert!(text.starts_with("settings.toml, line 1: this is not TOML"), "{text}");
        let text = said("log = 3\n", &[]);
        assert!(text.contains("write [log] and the settings below it"), "{text}");
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let said = |file: &str| resolved(file, &[], &[]).unwrap_err().to_string();
        assert!(said("[evaluation]\nperiod = \"500ms\"\n").contains("1s"));
        assert!(said("[leader]\nduration = \"5s\"\n").contains("two replicas could act at once"));
        assert!(said("[prometheus]\ncert-file = \"c.pem\"\n").contains("key-file"));
        assert!(said("[prometheus]\nconcurrency = 0\n").contains("prometheus.concurrency must be from 1 to 256"));
        assert!(said("[evaluation]\nthreads = 9999\n").contains("evaluation.threads must be from 0 to 1024"));
        assert!(said("[prometheus]\nmax-response-mebibytes = 2000\n").contains("from 1 to 1024"));
    }

    #[test]
    fn a_gateway_needs_all_that_it_is_made_of() {
        let whole = [
            "etcd-endpoints = \"https://e:2379\"",
            "etcd-secret = \"e\"",
            "url = \"https://g:8443\"",
            "agent-image = \"a:1\"",
        ];
        let with = |lines: &[&str]| resolved(&format!("[gateway]\n{}\n", lines.join("\n")), &[], &[]);
        let said = |lines: &[&str]| with(lines).unwrap_err().to_string();
        assert!(with(&whole).unwrap().gateway.is_on());
        assert!(said(&[&whole[..1], &whole[2..]].concat()).contains("etcd-secret"));
        assert!(said(&[&whole[..2], &whole[3..]].concat()).contains("gateway.url"));
        assert!(said(&whole[..3]).contains("gateway.agent-image"));
        assert!(said(&[&["etcd-endpoints = \"http://e:2379\""], &whole[1..]].concat()).contains("https://"));
        assert!(said(&[&whole[..], &["etcd-ca-file = \"/x\""]].concat()).contains("etcd-ca-file"));
        assert!(!with(&whole[1..]).unwrap().gateway.is_on(), "without etcd there is none");
    }

    #[test]
    fn images_need_an_architecture_a_deadline_and_mirrors_of_something() {
        let with = |line: &str| resolved(&format!("[images]\n{line}\n"), &[], &[]);
        let said = |line: &str| with(line).unwrap_err().to_string();
        assert!(said("architecture = \"\"").contains("kubernetes.io/arch"));
        assert!(said("timeout = \"20s\"").contains("at most 15 s"));
        assert!(said("timeout = \"0s\"").contains("above 0"));
        assert!(said("mirrors = \"docker.io\"").contains("images.mirrors: entry 1 is not of the form REGISTRY=MIRROR"));
        for (setting, value) in [
            ("mirrors", "docker.io=https://u:hunter2@m"),
            ("registries", "u:hunter2@m"),
            ("plain-http", "hunter2@m"),
            ("mirrors", "docker.io=a,hunter2"),
        ] {
            let text = said(&format!("{setting} = \"{value}\""));
            assert!(text.contains(&format!("images.{setting}")) && !text.contains("hunter2"), "{text}");
        }
        let mirrors = with("mirrors = \"docker.io=a, docker.io=b:5000,ghcr.io=a\"").unwrap().images.mirrors().unwrap();
        assert_eq!(mirrors["docker.io"], ["a", "b:5000"]);
        assert_eq!(mirrors["ghcr.io"], ["a"]);
    }

    #[test]
    fn the_decision_log_keeps_the_inputs_that_are_asked_for() {
        let with = |line: &str| resolved(&format!("[decision-log]\ndir = \"/log\"\n{line}\n"), &[], &[]);
        let kept = |line: &str| with(line).unwrap().decision_log.log().unwrap().inputs;
        assert_eq!(kept(""), KeepInputs::Changes);
        assert_eq!(kept("inputs = \"all\""), KeepInputs::All);
        assert_eq!(kept("inputs = \"none\""), KeepInputs::None);
        let said = |line: &str| with(line).unwrap_err().to_string();
        let text = said("inputs = \"every\"");
        assert!(text.starts_with("settings.toml, line 3: `decision-log.inputs` = \"every\""), "{text}");
        assert!(text.contains("`all`, `changes`, `none`"), "{text}");
        assert!(said("input = \"all\"").ends_with("did you mean `decision-log.inputs`?"));
        assert!(Settings::default().decision_log.log().is_none(), "without a directory there is none");
    }

    #[test]
    fn services_named_like_us_are_no_settings() {
        let links = [("ETO_METRICS_SERVICE_HOST", "10.0.0.1"), ("ETO_METRICS_PORT_8080_TCP_ADDR", "10.0.0.1")];
        assert_eq!(resolved("", &links, &[]).unwrap(), Settings::default());
    }

    #[test]
    fn shown_settings_resolve_to_themselves_and_hide_secrets() {
        let settings = resolved("[prometheus]\nurl = \"http://me:hush@host/p@th\"\n", &[], &[]).unwrap();
        let shown = settings.shown();
        assert!(shown.contains("http://***@host/p@th") && !shown.contains("hush"), "{shown}");
        assert_eq!(resolved(&Settings::default().shown(), &[], &[]).unwrap(), Settings::default());
    }
}
