//! Each policy's page lists the keys of its config and their defaults, as its `describe` does.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests read pages")]

use std::collections::BTreeMap;
use std::path::Path;

use eto_policy_sdk::bindings::placement::exports::elastic::policy::placement::Guest as Placement;
use eto_policy_sdk::bindings::scaling::exports::elastic::policy::scaling::Guest as Scaling;
use eto_policy_sdk::{Description, PlacementPolicy, ScalingPolicy};
use serde_json::Value;

fn named(description: &Description) -> (String, Value) {
    (description.name.clone(), serde_json::from_str(&description.config_schema).unwrap())
}

fn scaling<P: ScalingPolicy>() -> (String, Value) {
    named(&<P as Scaling>::describe())
}

fn placement<P: PlacementPolicy>() -> (String, Value) {
    named(&<P as Placement>::describe())
}

/// Every key of an object's schema, those of the objects in a list as `list[].key`, with its default; null = none that could
/// be written, `None` = it has to be given.
fn keys(schema: &Value, root: &Value, prefix: &str, into: &mut BTreeMap<String, Option<Value>>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = schema["required"].as_array().is_some_and(|r| r.iter().any(|k| k == key));
        let default = property.get("default").cloned().unwrap_or_default();
        into.insert(format!("{prefix}{key}"), Some(default).filter(|_| !is_required));
        if let Some(items) = property["items"]["$ref"].as_str().and_then(|r| root.pointer(r.trim_start_matches('#'))) {
            keys(items, root, &format!("{prefix}{key}[]."), into);
        }
    }
}

/// The table of a page below `## Config`: key -> what stands under `default`.
fn table(page: &str) -> BTreeMap<String, String> {
    let section = page.split_once("## Config\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|l| l.starts_with("| `"));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
    rows.map(cells)
        .flat_map(|row| {
            let names: Vec<String> = row[0].split('`').skip(1).step_by(2).map(str::to_owned).collect();
            names.into_iter().map(move |name| (name, row[1].trim_matches('`').to_owned()))
        })
        .collect()
}

/// What is wrong with what a page says of a default.
fn problem(says: &str, default: Option<&Value>) -> Option<String> {
    let is_right = match default {
        None => says.is_empty(),
        Some(Value::String(text)) => says == text,
        Some(Value::Number(number)) => says.parse::<f64>().ok() == number.as_f64(),
        Some(Value::Bool(is)) => says == is.to_string(),
        // What happens without a value is told in words.
        Some(_) => says.parse::<f64>().is_err() && says.parse::<bool>().is_err(),
    };
    (!is_right).then(|| format!("the page says {says:?}, the policy {}", default.unwrap_or(&Value::Null)))
}

#[test]
fn pages_list_the_keys_of_each_config_with_their_defaults() {
    let policies = BTreeMap::from([
        placement::<policy_binpack::Binpack>(),
        scaling::<policy_gpu_efficiency::GpuEfficiency>(),
        scaling::<policy_hpa::Hpa>(),
        scaling::<policy_schedule::Schedule>(),
        placement::<policy_spread::Spread>(),
        scaling::<policy_target_tracking::TargetTracking>(),
        placement::<policy_topology::Topology>(),
    ]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies");
    let mut seen = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == "README" {
            continue;
        }
        let schema = policies.get(name).unwrap_or_else(|| panic!("{}: no policy of that name", path.display()));
        let mut of_policy = BTreeMap::new();
        keys(schema, schema, "", &mut of_policy);
        let of_page = table(&std::fs::read_to_string(&path).unwrap());
        let listed: Vec<_> = of_page.keys().collect();
        assert_eq!(listed, of_policy.keys().collect::<Vec<_>>(), "{name}: keys of the page, and of the policy");
        for (key, default) in &of_policy {
            if let Some(problem) = problem(&of_page[key], default.as_ref()) {
                panic!("{name}: `{key}`: {problem}");
            }
        }
        seen.push(name.to_owned());
    }
    seen.sort();
    assert_eq!(seen, policies.into_keys().collect::<Vec<_>>(), "each policy has its page");
}

#[test]
fn a_page_that_is_wrong_is_found_out() {
    let page = "# p\n## Config\n| key | default | meaning |\n| --- | --- | --- |\n| `a`, `b` | `x` | |\n| `c[].d` | | |\n\n## Next\n| `no` | | |\n";
    let words = |w: &str| w.to_owned();
    let rows = [("a", "x"), ("b", "x"), ("c[].d", "")].map(|(k, v)| (words(k), words(v)));
    assert_eq!(table(page), BTreeMap::from(rows));
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (says, default, is_right) in [
        ("0.5", "0.5", true),
        ("0.4", "0.5", false),
        ("2", "2", true),
        ("rack", "\"rack\"", true),
        ("node", "\"rack\"", false),
        ("false", "true", false),
        ("none", "[]", true),
        ("3", "null", false),
    ] {
        assert_eq!(problem(says, Some(&json(default))).is_none(), is_right, "{says} {default}");
    }
    assert!(problem("", None).is_none() && problem("1", None).is_some(), "a key that has to be given has none");
}

#[test]
fn hpa_s_page_lists_the_rows_that_are_not_run() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies/hpa.md")).unwrap();
    let (_, table) = page.split_once("| rows | why |\n| --- | --- |\n").unwrap();
    let listed: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let row = |(name, why): &(&str, &str)| format!("| {name} | {why} |");
    let wanted: Vec<String> = policy_conformance::hpa::NOT_THE_POLICYS.iter().map(row).collect();
    assert_eq!(listed, wanted);
}
