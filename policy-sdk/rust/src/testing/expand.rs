//! The short forms of fixtures, made into whole inputs.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{NONE, PlacementInput, ScalingInput};

/// Which kind of policy a fixture is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ScalingPolicy`
    Scaling,
    /// `PlacementPolicy`
    Placement,
}

/// The time of an input that does not say.
const NOW_MS: u64 = 1_800_000_000_000;
/// Workers of plain jobs started long before any window.
const STARTED_MS: u64 = NOW_MS - 3_600_000;

/// A whole scaling input from a short one.
///
/// # Errors
/// What does not fit the contract.
pub fn scaling_input(short: &Value) -> Result<ScalingInput, String> {
    read(expand(Kind::Scaling, short)?)
}

/// A whole placement input from a short one.
///
/// # Errors
/// What does not fit the contract.
pub fn placement_input(short: &Value) -> Result<PlacementInput, String> {
    read(expand(Kind::Placement, short)?)
}

/// A whole input. As the host does, it refuses fields that the contract does not have: most often they are misspelt.
pub(super) fn read<T: Serialize + DeserializeOwned>(whole: Value) -> Result<T, String> {
    let given = whole.clone();
    let input: T = serde_json::from_value(whole).map_err(|e| e.to_string())?;
    let known = serde_json::to_value(&input).map_err(|e| e.to_string())?;
    match stranger(&given, &known) {
        Some(path) => Err(format!("there is no field `{path}`")),
        None => Ok(input),
    }
}

/// The path of the first field that is given and not known. A null may stand for what is left out.
fn stranger(given: &Value, known: &Value) -> Option<String> {
    let below = |at: &str, given, known| stranger(given, known).map(|path| format!("{at}.{path}"));
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| match known.get(key) {
            Some(known) => below(key, value, known),
            None => (!value.is_null()).then(|| key.clone()),
        }),
        (Value::Array(given), Value::Array(known)) => {
            given.iter().zip(known).enumerate().find_map(|(at, (given, known))| below(&at.to_string(), given, known))
        }
        _ => None,
    }
}

/// The whole input, as JSON, that a short form stands for.
///
/// - What is left out is that of a plain job: 1 to 10 workers, tolerance 0.1, time 1 800 000 000 000.
/// - `"workers": 3` is three workers that run, are ready and started an hour ago. Sizes follow from their number.
/// - `"signals": {"NAME": [0.5, null]}` is a per-worker signal with requests of 1.0 whose second sample is missing;
///   `{"NAME": 7}` one of shape `Job`; `{"NAME": {"values": [..], "quality": "Stale"}}` the same with fields set.
/// - `"config": {..}` may be an object.
/// - `nodes`, `members` and `workers` may be lists of rows, `[{"free_cpu": 4}, ..]`; a node has 8 CPUs, 32 GiB and no
///   GPU free unless it says so, a member runs on node 0.
///
/// # Errors
/// If it is no object, or a short form is not one of these.
pub fn expand(kind: Kind, short: &Value) -> Result<Value, String> {
    let short = short.as_object().ok_or("`input` must be an object")?;
    let mut whole = match kind {
        Kind::Scaling => plain_scaling(short)?,
        Kind::Placement => plain_placement(short)?,
    };
    for (key, value) in short {
        let value = match (key.as_str(), value) {
            ("workers" | "signals" | "nodes" | "members", _) if whole.contains_key(key) => continue,
            ("config", Value::Object(config)) => Value::String(Value::Object(config.clone()).to_string()),
            _ => value.clone(),
        };
        merge(whole.entry(key.clone()).or_insert(Value::Null), value);
    }
    Ok(Value::Object(whole))
}

/// Objects key by key; all else replaces.
fn merge(into: &mut Value, value: Value) {
    match (into, value) {
        (Value::Object(into), Value::Object(value)) => {
            for (key, value) in value {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}

fn plain_job() -> Value {
    json!({
        "namespace": "team-a", "name": "job", "uid": "7b1e8d1a-0000-4000-8000-000000000001", "framework": "PyTorch",
        "generation": 1, "round": 1, "created_ms": STARTED_MS, "running_since_ms": STARTED_MS, "failures": 0
    })
}

fn plain_scaling(short: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let workers = match short.get("workers") {
        None => columns(&rows_of(2), &worker_defaults())?,
        Some(Value::Number(count)) => columns(&rows_of(count.as_u64().unwrap_or(0)), &worker_defaults())?,
        Some(Value::Array(rows)) => columns(rows, &worker_defaults())?,
        Some(whole) => whole.clone(),
    };
    let count = workers.get("index").and_then(Value::as_array).map_or(0, Vec::len);
    let now = short.get("now_ms").and_then(Value::as_u64).unwrap_or(NOW_MS);
    let signals = match short.get("signals") {
        None => json!([]),
        Some(Value::Object(named)) => {
            Value::Array(named.iter().map(|(n, s)| signal(n, s, now)).collect::<Result<_, _>>()?)
        }
        Some(whole) => whole.clone(),
    };
    let whole = json!({
        "now_ms": NOW_MS, "seed": 1, "job": plain_job(),
        "bounds": { "min": 1, "max": 10, "legal": [], "tolerance_up": 0.1, "tolerance_down": 0.1 },
        "sizes": { "replicas": count, "target": count, "current": count, "ready": count },
        "workers": workers, "signals": signals, "metrics": [],
        "capacity": { "fits": NONE, "pending": 0 },
        "resize": { "last_ms": 0, "last_cost_ms": 0, "last_from": 0, "last_refused": false },
        "config": "{}", "state": null
    });
    Ok(whole.as_object().cloned().unwrap_or_default())
}

fn plain_placement(short: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let table = |key: &str, defaults: &Value| match short.get(key) {
        None => columns(&[], defaults),
        Some(Value::Array(rows)) => columns(rows, defaults),
        Some(whole) => Ok(whole.clone()),
    };
    let gib = 1024.0 * 1024.0 * 1024.0;
    let nodes = table(
        "nodes",
        &json!({
            "free_cpu": 8.0, "free_memory": 32.0 * gib, "free_gpus": 0.0,
            "total_cpu": 8.0, "total_memory": 32.0 * gib, "total_gpus": 0.0,
            "zone": NONE, "rack": NONE, "members": 0, "faults": 0
        }),
    )?;
    let members = table(
        "members",
        &json!({ "index": null, "node": 0, "ready": true, "started_ms": STARTED_MS, "protected": false }),
    )?;
    let whole = json!({
        "now_ms": NOW_MS, "seed": 1, "job": plain_job(), "nodes": nodes, "members": members,
        "request": { "cpu": 1.0, "memory": gib, "gpus": 0.0 },
        "add": [], "drop": 0, "config": "{}", "state": null
    });
    Ok(whole.as_object().cloned().unwrap_or_default())
}

fn rows_of(count: u64) -> Vec<Value> {
    (0..count).map(|_| json!({})).collect()
}

fn worker_defaults() -> Value {
    json!({
        "index": null, "phase": "Running", "ready": "Ready", "started_ms": STARTED_MS,
        "ready_changed_ms": STARTED_MS + 10_000, "deleting": false, "node": 0
    })
}

/// Rows of objects as columns. A default of null stands for the row's number.
fn columns(rows: &[Value], defaults: &Value) -> Result<Value, String> {
    let defaults = defaults.as_object().cloned().unwrap_or_default();
    if let Some(key) =
        rows.iter().filter_map(Value::as_object).flatten().map(|f| f.0).find(|k| !defaults.contains_key(*k))
    {
        return Err(format!("there is no column `{key}`"));
    }
    let column = |key: &String, default: &Value| -> Value {
        let default = |row: usize| if default.is_null() { json!(row) } else { default.clone() };
        rows.iter().enumerate().map(|(i, row)| row.get(key).cloned().unwrap_or_else(|| default(i))).collect()
    };
    Ok(Value::Object(defaults.iter().map(|(key, default)| (key.clone(), column(key, default))).collect()))
}

fn signal(name: &str, short: &Value, now: u64) -> Result<Value, String> {
    let (fields, values) = match short {
        Value::Object(fields) => (fields.clone(), fields.get("values").cloned().unwrap_or(json!([]))),
        other => (Map::new(), other.clone()),
    };
    let (shape, values) = match values {
        Value::Array(values) => ("PerWorker", values),
        value @ (Value::Number(_) | Value::Null) => ("Job", vec![value]),
        _ => return Err(format!("signal `{name}`: values must be a list or a number")),
    };
    #[allow(clippy::cast_precision_loss, reason = "a count of workers")]
    let coverage = values.iter().filter(|v| !v.is_null()).count() as f64 / values.len().max(1) as f64;
    let quality = if coverage >= 1.0 {
        "Ok"
    } else if coverage > 0.0 {
        "Partial"
    } else {
        "Absent"
    };
    let request = if shape == "Job" { 0.0 } else { 1.0 };
    let mut whole = json!({
        "name": name, "shape": shape, "quality": quality, "coverage": coverage, "age_ms": 5_000, "window_ms": 60_000,
        "values": values.iter().map(|v| if v.is_null() { json!(0.0) } else { v.clone() }).collect::<Vec<_>>(),
        "requests": vec![request; values.len()],
        "sampled_ms": values.iter().map(|v| if v.is_null() { 0 } else { now - 5_000 }).collect::<Vec<_>>(),
        "history_ms": [], "history": []
    });
    for (key, value) in fields.into_iter().filter(|(key, _)| key != "values") {
        merge(whole.get_mut(&key).ok_or_else(|| format!("signal `{name}`: there is no field `{key}`"))?, value);
    }
    Ok(whole)
}
