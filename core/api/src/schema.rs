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

/// A quantity as in core/v1: a number (whole or not), or text such as `500m` or `16Gi`. The type is left open, since
/// `x-kubernetes-int-or-string` would refuse the `0.05` that HPA takes; it is checked when the job is read.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// A number of processes, or a word for it: `gpu`, `cpu`, `auto`.
pub(crate) fn processes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 1 && self <= 1024 : self.matches('^([1-9][0-9]{0,3}|gpu|cpu|auto)$')",
            "message": "must be a whole number from 1 to 1024, or gpu, cpu or auto",
        }],
    })
}

/// Conditions as in `metav1.Condition`, one per type. Written out, since the key of a map list must be required.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string" },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "reason": { "type": "string" },
                "message": { "type": "string" },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "observedGeneration": { "type": "integer", "format": "int64" },
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
