//! `eto policy`: a module as the operator would load and ask it.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use eto_engine::contract::{
    KeptState, Place, PlacementDecision, PlacementInput, Reason, ScalingDecision, ScalingInput, SignalWant,
};
use eto_engine::policy::{Asked, CallFailure, PlacementPolicy, PolicyId, ScalingPolicy};
use eto_policy_host::{HostSettings, Limits, LoadError, Policy, PolicyHost, PolicyKind};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::columns;
use crate::config_schema;
use crate::failure::Failure;
use crate::output::{self, Format};

/// Loads a module with the settings beside it, or says why the operator would refuse it.
fn load(module: &Path) -> Result<Arc<Policy>, Failure> {
    try_load(module)?.map_err(|error| refusal(module, &error))
}

fn try_load(module: &Path) -> Result<Result<Arc<Policy>, LoadError>, Failure> {
    let host = PolicyHost::new(HostSettings::default())
        .map_err(|e| Failure::Refused(format!("the WebAssembly host can't start on this machine: {e}")))?;
    Ok(host.load_file(module))
}

/// The reason's word is what the operator's conditions and docs/troubleshooting.md have.
fn refusal(module: &Path, error: &LoadError) -> Failure {
    let reason = error.reason();
    match error {
        LoadError::Unreadable { path, detail } => {
            Failure::Read { path: path.into(), why: std::io::Error::other(format!("{detail} ({reason})")) }
        }
        error => Failure::Refused(format!("{} can't be served ({reason}): {error}", module.display())),
    }
}

/// Why `check` says no.
#[derive(Serialize)]
struct Refused {
    servable: bool,
    reason: &'static str,
    message: String,
}

/// What `check` found.
#[derive(Serialize)]
struct Checked<'a> {
    servable: bool,
    kind: PolicyKind,
    #[serde(flatten)]
    id: &'a PolicyId,
    limits: &'a Limits,
}

pub(crate) fn check(module: &Path, format: Option<Format>) -> Result<(), Failure> {
    let policy = match try_load(module)? {
        Ok(policy) => policy,
        Err(error) => {
            if let Some(format) = format.filter(|format| *format != Format::Table) {
                let (reason, message) = (error.reason(), error.to_string());
                output::print(format, &Refused { servable: false, reason, message })?;
            }
            return Err(refusal(module, &error));
        }
    };
    let id = policy.id();
    match format {
        None | Some(Format::Table) => output::raw(&format!(
            "{} can be served: {} policy {} {} ({})\n",
            module.display(),
            policy.kind(),
            id.name,
            id.version,
            id.digest
        )),
        Some(format) => {
            let limits = &policy.settings().limits;
            output::print(format, &Checked { servable: true, kind: policy.kind(), id, limits })
        }
    }
}

/// What a module says of itself, and how it is served.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    id: &'a PolicyId,
    kind: PolicyKind,
    summary: &'a str,
    /// Version of the layout of its state; 0 = it keeps none.
    state_version: u32,
    signals: &'a [SignalWant],
    /// Schema of its config; `null` = it takes none.
    config_schema: Option<Value>,
    /// Defaults from the settings beside the module.
    config: &'a serde_json::Map<String, Value>,
    limits: &'a Limits,
}

pub(crate) fn describe(module: &Path, format: Option<Format>) -> Result<(), Failure> {
    let policy = load(module)?;
    let d = policy.description();
    let described = Described {
        id: policy.id(),
        kind: policy.kind(),
        summary: &d.summary,
        state_version: d.state_version,
        signals: &d.signals,
        config_schema: serde_json::from_str(&d.config_schema).ok(),
        config: &policy.settings().config,
        limits: &policy.settings().limits,
    };
    match format {
        None | Some(Format::Table) => output::raw(&description_table(&described)),
        Some(format) => output::print(format, &described),
    }
}

fn description_table(d: &Described<'_>) -> String {
    let state = if d.state_version == 0 { "none".to_string() } else { format!("layout version {}", d.state_version) };
    let mut rows = vec![
        ("Name".to_string(), format!("{} {}", d.id.name, d.id.version)),
        ("Kind".to_string(), d.kind.to_string()),
        ("Digest".to_string(), d.id.digest.clone()),
        ("Summary".to_string(), d.summary.to_string()),
        ("State".to_string(), state),
        (
            "Limits".to_string(),
            format!("fuel {}, {} ms, {} bytes", d.limits.fuel, d.limits.deadline_ms, d.limits.memory_bytes),
        ),
    ];
    if !d.config.is_empty() {
        rows.push(("Config here".to_string(), Value::Object(d.config.clone()).to_string()));
    }
    let mut text = output::pairs(&rows);
    let keys = d.config_schema.as_ref().map(config_schema::rows).unwrap_or_default();
    if keys.is_empty() {
        text.push_str("\nIt takes no config.\n");
    } else {
        text.push_str("\nConfig:\n");
        text.push_str(&output::table(&config_schema::HEADS, &keys));
    }
    if !d.signals.is_empty() {
        let row = |s: &SignalWant| {
            vec![
                s.name.clone(),
                if s.required { "yes" } else { "no" }.to_string(),
                format!("{:?}", s.direction),
                if s.window_seconds == 0 { "default".to_string() } else { format!("{} s", s.window_seconds) },
                s.query.clone().unwrap_or_default(),
            ]
        };
        text.push_str("\nSignals with the default config:\n");
        let rows: Vec<_> = d.signals.iter().map(row).collect();
        text.push_str(&output::table(&["signal", "required", "direction", "window", "query"], &rows));
    }
    text
}

/// Prints the schema of the input that the module's kind takes.
pub(crate) fn schema(module: &Path, format: Option<Format>) -> Result<(), Failure> {
    let schema = match load(module)?.kind() {
        PolicyKind::Scaling => schema_of::<ScalingInput>(),
        PolicyKind::Placement => schema_of::<PlacementInput>(),
    };
    output::print(format.filter(|f| *f != Format::Table).unwrap_or(Format::Json), &schema)
}

fn schema_of<T: JsonSchema>() -> schemars::Schema {
    schemars::SchemaGenerator::default().into_root_schema_for::<T>()
}

/// An answer with what it cost.
#[derive(Serialize)]
struct Evaluated<'a, D> {
    policy: &'a PolicyId,
    decision: &'a D,
    /// What the next input takes as its `state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<KeptState>,
    /// Instructions, roughly; the same on every machine.
    fuel: u64,
    /// Wall-clock time of the call on this machine.
    microseconds: u64,
}

pub(crate) fn eval(module: &Path, input: &Path, format: Option<Format>) -> Result<(), Failure> {
    let policy = load(module)?;
    let format = format.unwrap_or(Format::Json);
    match policy.kind() {
        PolicyKind::Scaling => {
            let input: ScalingInput = read_input(input)?;
            show(format, module, &policy, timed(|| policy.evaluate(&input)))
        }
        PolicyKind::Placement => {
            let input: PlacementInput = read_input(input)?;
            show(format, module, &policy, timed(|| policy.place(&input)))
        }
    }
}

fn timed<T>(call: impl FnOnce() -> Asked<T>) -> (Asked<T>, u64) {
    let start = Instant::now();
    let answer = call();
    (answer, u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX))
}

fn failed(module: &Path, f: &CallFailure) -> Failure {
    Failure::Refused(format!("{} did not answer: {:?}: {}", module.display(), f.kind, f.message))
}

/// What both kinds of decision have to show.
trait Decided: Serialize {
    /// The rows of its table that come before the reasons.
    fn rows(&self) -> Vec<(String, String)>;
    fn reasons(&self) -> &[Reason];
    fn state(&self) -> Option<&[u8]>;
}

impl Decided for ScalingDecision {
    fn rows(&self) -> Vec<(String, String)> {
        vec![("Target".to_string(), self.target.map_or("hold".to_string(), |t| t.to_string()))]
    }
    fn reasons(&self) -> &[Reason] {
        &self.reasons
    }
    fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }
}

impl Decided for PlacementDecision {
    fn rows(&self) -> Vec<(String, String)> {
        let place = |p: &Place| {
            format!("worker {} on node {}{}", p.worker, p.node, if p.required { " (required)" } else { "" })
        };
        let places: Vec<String> = self.places.iter().map(place).collect();
        let victims: Vec<String> = self.victims.iter().map(ToString::to_string).collect();
        vec![("Places".to_string(), places.join("\n")), ("Victims".to_string(), victims.join(", "))]
    }
    fn reasons(&self) -> &[Reason] {
        &self.reasons
    }
    fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }
}

fn show<D: Decided>(
    format: Format,
    module: &Path,
    policy: &Policy,
    (answer, microseconds): (Asked<D>, u64),
) -> Result<(), Failure> {
    let answer = answer.map_err(|f| failed(module, &f))?;
    let (decision, fuel) = (&answer.value, answer.fuel);
    if format != Format::Table {
        let version = policy.description().state_version;
        let state = decision.state().map(|bytes| KeptState { version, bytes: bytes.to_vec() });
        return output::print(format, &Evaluated { policy: policy.id(), decision, state, fuel, microseconds });
    }
    let mut rows = vec![("Policy".to_string(), format!("{} {}", policy.id().name, policy.id().version))];
    rows.extend(decision.rows());
    let reasons: Vec<String> = decision.reasons().iter().map(|r| format!("{}: {}", r.code, r.message)).collect();
    rows.push(("Reasons".to_string(), reasons.join("\n")));
    rows.push(("Fuel".to_string(), fuel.to_string()));
    rows.push(("Time".to_string(), format!("{microseconds} us")));
    output::raw(&output::pairs(&rows))
}

/// Reads an input: the JSON of the contract, or a line of the decision log that holds one.
fn read_input<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = read_text(path).map_err(|why| Failure::Read { path: path.to_owned(), why })?;
    let from = if path == Path::new("-") { "standard input".to_string() } else { path.display().to_string() };
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "{from} is not an input of this kind of policy: {why}; `eto policy eval MODULE --schema` prints its schema"
        ))
    };
    let mut value: Value = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    if value.get("kind").is_some_and(|k| k == "input" || k == "placement-input")
        && let Some(inner) = value.get_mut("input")
    {
        value = inner.take();
    }
    if let Some(which) = columns::uneven(&value) {
        return Err(wrong(&which));
    }
    eto_api::decode("", &value).map_err(|misfit| wrong(&misfit))
}

/// Longest input, in bytes. What never ends (a device, a runaway pipe) must not take the machine's memory.
const MAX_INPUT: u64 = 256 * 1024 * 1024;

/// The text of a file, of a pipe (`<(...)` of a shell) or, for `-`, of standard input.
fn read_text(path: &Path) -> io::Result<String> {
    let from: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(std::fs::File::open(path)?) };
    let mut bytes = Vec::new();
    from.take(MAX_INPUT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(io::Error::other(format!("it is longer than {MAX_INPUT} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}
