//! History that decisions rest on, as of the last write.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

status! {
    /// History that decisions rest on.
    pub struct MemoryStatus {
        /// When it was written.
        pub saved: String,
        /// When it began.
        pub since: String,
        pub sequence: i64,
        /// `spec.replicas` at the last decision.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replicas: Option<i64>,
        /// Unstabilised targets.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub recommendations: Vec<SizeAt>,
        /// Workers added.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ups: Vec<SizeAt>,
        /// Workers removed.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub downs: Vec<SizeAt>,
        /// What the policy keeps.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub policy_state: Option<PolicyStateStatus>,
        /// Name of the policy that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub policy_state_of: Option<String>,
        /// What the placement policy keeps.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub placement_state: Option<PolicyStateStatus>,
        /// Name of the placement policy that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub placement_state_of: Option<String>,
        /// Failures in a row by module digest.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub circuits: BTreeMap<String, CircuitStatus>,
    }

    /// A number of workers at a time.
    pub struct SizeAt {
        pub time: String,
        pub size: i64,
    }

    /// Bytes that a policy keeps.
    pub struct PolicyStateStatus {
        /// Layout version of the policy that wrote them.
        pub version: i64,
        /// Base64.
        #[schemars(with = "String")]
        pub data: ByteString,
    }

    /// Circuit breaker of one module.
    pub struct CircuitStatus {
        pub failures: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub open_until: Option<String>,
    }
}
