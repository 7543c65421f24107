#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use proptest::prelude::*;

use super::*;

type Seen = (Vec<(String, String)>, f64, f64);

fn all(body: &str) -> Result<(Vec<Seen>, Notes), SourceError> {
    let mut rows = Vec::new();
    let notes = read(body.as_bytes(), &mut |row| {
        let labels = row.labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        rows.push((labels, row.evaluated, row.value));
    })?;
    Ok((rows, notes))
}

#[test]
fn a_vector_with_escapes_and_special_values() {
    let (rows, notes) = all(r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a\u00e9","namespace":"n"},"value":[1700000000.25,"0.5"]},
            {"metric":{},"value":[1700000000,"NaN"]},
            {"value":[1,"+Inf"],"metric":{"x":""}},
            {"metric":{"h":"1"},"histogram":[1,{"count":"1"}]}
        ],"later":{"a":[1]}},"warnings":["store gone"],"infos":null,"more":1}"#)
    .unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0].0[0], ("pod".to_owned(), "aé".to_owned()));
    assert!((rows[0].1 - 1_700_000_000.25).abs() < 1e-9);
    assert!(rows[1].2.is_nan());
    assert!(rows[2].2.is_infinite());
    assert_eq!((notes.rows, notes.histograms), (3, 1));
    let trouble = notes.trouble().unwrap();
    assert!(trouble.contains("store gone") && trouble.contains("histogram"), "{trouble}");
}

#[test]
fn a_scalar_is_one_row_without_labels() {
    let (rows, notes) = all(r#"{"status":"success","data":{"resultType":"scalar","result":[17,"4"]}}"#).unwrap();
    assert_eq!(rows, vec![(vec![], 17.0, 4.0)]);
    assert!(notes.trouble().is_none());
}

#[test]
fn everything_else_is_a_typed_error() {
    let kind = |body: &str| match all(body).unwrap_err() {
        SourceError::NotJson { what } => format!("not json: {what}"),
        SourceError::Shape { why } => format!("shape: {why}"),
        SourceError::Refused { kind, message } => format!("refused: {kind} {message}"),
        other => panic!("{other:?}"),
    };
    assert!(kind("\n <html>login</html>").contains("HTML"));
    assert!(kind("").starts_with("not json"));
    assert!(kind("ok").starts_with("not json"));
    assert!(kind(r#"{"status":"success""#).starts_with("not json"));
    assert!(kind("[]").starts_with("shape"));
    assert!(kind("{}").contains("no status"));
    assert!(kind(r#"{"status":"success"}"#).contains("resultType"));
    assert!(
        kind(r#"{"status":"error","errorType":"bad_data","error":"parse error","data":null}"#)
            .contains("bad_data parse")
    );
    for matrix in ["matrix", "string"] {
        let body = format!(r#"{{"status":"success","data":{{"resultType":"{matrix}","result":[]}}}}"#);
        assert!(kind(&body).contains(matrix));
    }
    let bad = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}"#;
    assert!(kind(bad).contains("not a number"));
    // The result before its type is still read as a vector, and refused by its type afterwards.
    let late = r#"{"data":{"result":[{"metric":{},"values":[[1,"2"]]}],"resultType":"matrix"},"status":"success"}"#;
    assert!(kind(late).contains("matrix"));
}

#[test]
fn foreign_text_is_shortened() {
    assert_eq!(shorten(" a\n b\t"), "a b");
    assert_eq!(shorten(&"é".repeat(500)).chars().count(), 201);
}

proptest! {
    #[test]
    fn any_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&body, &mut |_| {});
    }

    #[test]
    fn what_is_written_is_read(rows in proptest::collection::vec(
        (proptest::collection::btree_map("[a-z_]{1,8}", "\\PC{0,12}", 0..4), any::<f64>()), 0..20))
    {
        let result: Vec<_> = rows.iter().map(|(labels, value)| {
            let text = if value.is_infinite() { if *value > 0.0 { "+Inf".into() } else { "-Inf".into() } }
                else { format!("{value:e}") };
            serde_json::json!({"metric": labels, "value": [17.5, text]})
        }).collect();
        let body = serde_json::json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string();
        let (seen, _) = all(&body).unwrap();
        prop_assert_eq!(seen.len(), rows.len());
        for ((labels, _, value), (expected, number)) in seen.iter().zip(&rows) {
            let expected: Vec<_> = expected.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            let mut labels = labels.clone();
            labels.sort();
            prop_assert_eq!(labels, expected);
            prop_assert!(value.to_bits() == number.to_bits() || (value.is_nan() && number.is_nan()));
        }
    }
}
