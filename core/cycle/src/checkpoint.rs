//! A policy's state that is too large for `status`, as a `ConfigMap` of the job's own, and back.
//!
//! Only the bytes are here; what the guard remembers stays in `status`. `MemoryStatus::policy_state_of` without a
//! `policy_state` says that there is something to be found here.

use eto_api::{ElasticJob, labels};
use eto_engine::contract::{KeptState, MAX_STATE};
use eto_engine::job::JobKey;
use eto_engine::state::Memory;
use eto_engine::time::Time;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::pod::owner;
use crate::status::{MAX_STORED_POLICY_STATE, rfc3339};

const STATE: &str = "state";
const POLICY: &str = "policy";
const VERSION: &str = "state-version";
const SEQUENCE: &str = "sequence";
const SAVED: &str = "saved";

/// A policy's state as it was at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyCheckpoint {
    /// Number of the decision that it was kept after.
    pub sequence: u64,
    /// When it was saved.
    pub saved: Time,
    /// Name of the policy that it belongs to.
    pub policy: String,
    pub state: KeptState,
}

/// The job that a checkpoint belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Of {
    pub job: JobKey,
    pub uid: String,
}

impl PolicyCheckpoint {
    /// What is to be kept outside `status`; `None` where there is no state, or `status` holds it.
    pub fn of(memory: &Memory, now: Time) -> Option<Self> {
        let state = memory.policy_state.as_ref().filter(|s| is_large(s))?;
        let policy = memory.policy_state_of.clone()?;
        Some(PolicyCheckpoint { sequence: memory.sequence, saved: now, policy, state: state.clone() })
    }

    /// The same for the same state of the same policy, whenever it was saved.
    pub fn digest(&self) -> [u8; 32] {
        digest(&self.policy, &self.state)
    }
}

/// See [`PolicyCheckpoint::digest`].
pub fn digest(policy: &str, state: &KeptState) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(policy.as_bytes());
    hash.update([0]);
    hash.update(state.version.to_le_bytes());
    hash.update(&state.bytes);
    hash.finalize().into()
}

/// Whether a state has no place in `status`.
pub fn is_large(state: &KeptState) -> bool {
    state.bytes.len() > MAX_STORED_POLICY_STATE
}

/// Name of the `ConfigMap` of the job with that UID. Nobody's by accident, and another one for a job that is made again
/// under its name.
pub fn name(uid: &str) -> String {
    format!("policy-state-{uid}")
}

/// The `ConfigMap`: it goes with the job. `None` for an object that the API server has not seen.
pub fn build(job: &ElasticJob, checkpoint: &PolicyCheckpoint) -> Option<ConfigMap> {
    let text = |key: &str, value: String| (key.to_string(), value);
    Some(ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(job.metadata.uid.as_deref()?)),
            namespace: job.metadata.namespace.clone(),
            labels: Some(
                [
                    (labels::ELASTIC_JOB.to_string(), job.metadata.name.clone()?),
                    (labels::POLICY_STATE.to_string(), "true".to_string()),
                    (labels::MANAGED_BY.to_string(), labels::MANAGER.to_string()),
                ]
                .into(),
            ),
            owner_references: Some(vec![owner(job)?]),
            ..ObjectMeta::default()
        },
        binary_data: Some([(STATE.to_string(), ByteString(checkpoint.state.bytes.clone()))].into()),
        data: Some(
            [
                text(POLICY, checkpoint.policy.clone()),
                text(VERSION, checkpoint.state.version.to_string()),
                text(SEQUENCE, checkpoint.sequence.to_string()),
                text(SAVED, rfc3339(checkpoint.saved)),
            ]
            .into(),
        ),
        immutable: None,
    })
}

/// Reads one. `None` where it is not a job's checkpoint, or can't be read: the state counts as lost then.
pub fn read(map: ConfigMap) -> Option<(Of, PolicyCheckpoint)> {
    let owner = map.metadata.owner_references?.into_iter().find(|o| o.controller == Some(true))?;
    if owner.kind != "ElasticJob" || map.metadata.name.as_deref() != Some(name(&owner.uid).as_str()) {
        return None;
    }
    let bytes = map.binary_data?.remove(STATE)?.0;
    if bytes.len() > MAX_STATE {
        return None;
    }
    let mut data = map.data?;
    let saved: Timestamp = data.remove(SAVED)?.parse().ok()?;
    let state = KeptState { version: data.remove(VERSION)?.parse().ok()?, bytes };
    let checkpoint = PolicyCheckpoint {
        sequence: data.remove(SEQUENCE)?.parse().ok()?,
        saved: crate::spec::time(saved),
        policy: data.remove(POLICY)?,
        state,
    };
    let job = JobKey { namespace: map.metadata.namespace?, name: owner.name };
    Some((Of { job, uid: owner.uid }, checkpoint))
}
