//! What `wit-bindgen` makes of the contract. Users see these types through the crate's root.
//!
//! `wit/policy.wit` is a copy of `wit/v0.1/policy.wit` of the repository, so that the crate also builds outside of it;
//! a test holds the two equal. The serde attributes give the types the JSON form that the host, `eto policy eval` and
//! fixtures use.

/// World `scaling-policy`.
pub mod scaling {
    wit_bindgen::generate!({
        path: "wit",
        world: "scaling-policy",
        pub_export_macro: true,
        export_macro_name: "export_scaling",
        default_bindings_module: "eto_policy_sdk::bindings::scaling",
        generate_unused_types: true,
        additional_derives: [PartialEq, serde::Serialize, serde::Deserialize],
        additional_member_attributes: {
            "elastic:policy/types@0.1.0/signal-want.query": [#[serde(default, skip_serializing_if = "Option::is_none")]],
            "elastic:policy/types@0.1.0/signal-want.window-seconds": [#[serde(default)]],
            "elastic:policy/types@0.1.0/signal-want.history-seconds": [#[serde(default)]],
            "elastic:policy/types@0.1.0/reason.signal": [#[serde(default, skip_serializing_if = "Option::is_none")]],
            "elastic:policy/types@0.1.0/reason.value": [#[serde(default, skip_serializing_if = "Option::is_none")]],
            "elastic:policy/types@0.1.0/reason.target": [#[serde(default, skip_serializing_if = "Option::is_none")]],
            "elastic:policy/scaling@0.1.0/resize-facts.last-steps-lost": [
                #[serde(default, skip_serializing_if = "Option::is_none")]
            ],
            "elastic:policy/scaling@0.1.0/signal.history-ms": [#[serde(default)]],
            "elastic:policy/scaling@0.1.0/signal.history": [#[serde(default)]],
        },
    });
}

/// World `placement-policy`; shares the types and the log with [`scaling`].
pub mod placement {
    wit_bindgen::generate!({
        path: "wit",
        world: "placement-policy",
        pub_export_macro: true,
        export_macro_name: "export_placement",
        default_bindings_module: "eto_policy_sdk::bindings::placement",
        generate_unused_types: true,
        additional_derives: [PartialEq, serde::Serialize, serde::Deserialize],
        with: {
            "elastic:policy/types@0.1.0": crate::bindings::scaling::elastic::policy::types,
            "elastic:policy/log@0.1.0": crate::bindings::scaling::elastic::policy::log,
        },
    });
}
