//! Hand-written schemas of fields that are kept as JSON.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A JSON object of any content; the API server keeps all of it.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of JSON objects of any content.
pub(crate) fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// A quantity as in core/v1: a number, or text such as `500m` or `16Gi`.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// Conditions as in `metav1.Condition`, one per type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = generator.subschema_for::<crate::Condition>();
    json_schema!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
