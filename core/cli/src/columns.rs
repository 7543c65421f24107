//! Columns of an input belong together: a row that lies in some of them only is a mistake of whoever wrote it by hand.

use serde_json::Value;

/// What holds columns of equal length.
const TABLES: [&str; 3] = ["workers", "nodes", "members"];
/// The columns of a signal that have an element per worker.
const PER_WORKER: [&str; 3] = ["values", "requests", "sampled_ms"];

/// The first column that has another length than its table, and what it should be.
pub(crate) fn uneven(input: &Value) -> Option<String> {
    let len = |column: &Value| column.as_array().map(Vec::len);
    for name in TABLES {
        let Some(table) = input.get(name).and_then(Value::as_object) else { continue };
        // Absent columns are the deserializer's to name.
        let rows = table.get("index").or_else(|| table.get("free_cpu")).and_then(len).unwrap_or_default();
        for (column, values) in table {
            if len(values).is_some_and(|found| found != rows) {
                let found = len(values).unwrap_or_default();
                return Some(format!("{name}.{column}: {found} elements, but {name} has {rows} rows"));
            }
        }
    }
    let workers = input.get("workers").and_then(|w| w.get("index")).and_then(len)?;
    for (at, signal) in input.get("signals").and_then(Value::as_array)?.iter().enumerate() {
        if signal.get("shape").and_then(Value::as_str) != Some("PerWorker") {
            continue;
        }
        for column in PER_WORKER {
            let found = signal.get(column).and_then(len).unwrap_or_default();
            // A signal that is absent has no rows at all.
            if found != workers && found != 0 {
                return Some(format!("signals[{at}].{column}: {found} elements, but there are {workers} workers"));
            }
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::uneven;

    #[test]
    fn tables_and_signals_are_as_long_as_their_rows() {
        let input = |ready: &[u8], values: &[f64]| {
            json!({"workers": {"index": [0, 1], "ready": ready}, "members": {"index": [], "node": []},
                   "signals": [{"shape": "Job", "values": [1.0]}, {"shape": "PerWorker", "values": values}]})
        };
        assert_eq!(uneven(&input(&[1, 1], &[0.5, 0.5])), None);
        assert_eq!(uneven(&input(&[1, 1], &[])), None, "an absent signal");
        assert!(uneven(&input(&[1], &[])).unwrap().starts_with("workers.ready: 1 elements"));
        assert!(uneven(&input(&[1, 1], &[0.5])).unwrap().starts_with("signals[1].values: 1 elements"));
        assert_eq!(uneven(&json!(null)), None);
        assert_eq!(uneven(&json!({"workers": 3, "signals": {}})), None);
    }
}
