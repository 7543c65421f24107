//! States of a job's policies that are too large for `status`, as a `ConfigMap` of the job's own, and back.
//!
//! Only the bytes are here; what the guard remembers stays in `status`. `MemoryStatus::policy_state_of` without a
//! `policy_state` says that there is something to be found here, and so it is with the placement policy's.

use std::collections::BTreeMap;

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

const SEQUENCE: &str = "sequence";
const SAVED: &str = "saved";

/// Where one policy's state is in the map.
struct Keys {
    state: &'static str,
    policy: &'static str,
    version: &'static str,
}

const SCALING: Keys = Keys { state: "state", policy: "policy", version: "state-version" };
const PLACEMENT: Keys =
    Keys { state: "placement-state", policy: "placement-policy", version: "placement-state-version" };

/// The states as they were at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyCheckpoint {
    /// Number of the decision that they were kept after.
    pub sequence: u64,
    /// When they were saved.
    pub saved: Time,
    /// The scaling policy's; `None` = there is none, or `status` holds it.
    pub scaling: Option<Held>,
    /// The placement policy's, likewise.
    pub placement: Option<Held>,
}

/// One policy's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
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

/// The name of a policy and its state.
type Part<'a> = (&'a String, &'a KeptState);

/// What of a memory is too large for `status`: the scaling policy's state, and the placement policy's.
fn large(memory: &Memory) -> [Option<Part<'_>>; 2] {
    let kept = &memory.placement.kept;
    let both = [(&memory.policy_state_of, &memory.policy_state), (&kept.of, &kept.state)];
    both.map(|(of, state)| of.as_ref().zip(state.as_ref().filter(|state| is_large(state))))
}

impl PolicyCheckpoint {
    /// What is to be kept outside `status`; `None` where there is nothing.
    pub fn of(memory: &Memory, now: Time) -> Option<Self> {
        let held = |part: Part<'_>| Held { policy: part.0.clone(), state: part.1.clone() };
        let [scaling, placement] = large(memory).map(|part| part.map(held));
        let any = scaling.is_some() || placement.is_some();
        any.then_some(PolicyCheckpoint { sequence: memory.sequence, saved: now, scaling, placement })
    }

    /// The same for the same states of the same policies, whenever they were saved.
    pub fn digest(&self) -> [u8; 32] {
        hash([&self.scaling, &self.placement].map(|held| held.as_ref().map(|h| (&h.policy, &h.state))))
    }
}

/// The digest that [`PolicyCheckpoint::of`] this memory has, without a copy; `None` where there is nothing.
pub fn digest(memory: &Memory) -> Option<[u8; 32]> {
    let parts = large(memory);
    parts.iter().any(Option::is_some).then(|| hash(parts))
}

fn hash(parts: [Option<Part<'_>>; 2]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        match part {
            Some((policy, state)) => {
                hash.update([1]);
                hash.update(policy.as_bytes());
                hash.update([0]);
                hash.update(state.version.to_le_bytes());
                hash.update(state.bytes.len().to_le_bytes());
                hash.update(&state.bytes);
            }
            None => hash.update([0]),
        }
    }
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
    let parts = [(SCALING, &checkpoint.scaling), (PLACEMENT, &checkpoint.placement)];
    let mut data: BTreeMap<String, String> =
        [(SEQUENCE.to_string(), checkpoint.sequence.to_string()), (SAVED.to_string(), rfc3339(checkpoint.saved))]
            .into();
    let mut binary = BTreeMap::new();
    for (keys, held) in parts {
        let Some(held) = held else { continue };
        data.insert(keys.policy.to_string(), held.policy.clone());
        data.insert(keys.version.to_string(), held.state.version.to_string());
        binary.insert(keys.state.to_string(), ByteString(held.state.bytes.clone()));
    }
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
        binary_data: Some(binary),
        data: Some(data),
        immutable: None,
    })
}

/// Reads one. `None` where it is not a job's checkpoint, or can't be read: the state counts as lost then.
pub fn read(map: ConfigMap) -> Option<(Of, PolicyCheckpoint)> {
    let owner = map.metadata.owner_references?.into_iter().find(|o| o.controller == Some(true))?;
    if owner.kind != "ElasticJob" || map.metadata.name.as_deref() != Some(name(&owner.uid).as_str()) {
        return None;
    }
    let mut data = map.data?;
    let mut binary = map.binary_data?;
    let saved: Timestamp = data.remove(SAVED)?.parse().ok()?;
    let checkpoint = PolicyCheckpoint {
        sequence: data.remove(SEQUENCE)?.parse().ok()?,
        saved: crate::spec::time(saved),
        scaling: part(&SCALING, &mut data, &mut binary)?,
        placement: part(&PLACEMENT, &mut data, &mut binary)?,
    };
    if checkpoint.scaling.is_none() && checkpoint.placement.is_none() {
        return None;
    }
    let job = JobKey { namespace: map.metadata.namespace?, name: owner.name };
    Some((Of { job, uid: owner.uid }, checkpoint))
}

/// One policy's part. The outer `None`: it is there and can't be read.
#[allow(clippy::option_option)]
fn part(
    keys: &Keys,
    data: &mut BTreeMap<String, String>,
    binary: &mut BTreeMap<String, ByteString>,
) -> Option<Option<Held>> {
    let Some(bytes) = binary.remove(keys.state) else { return Some(None) };
    if bytes.0.len() > MAX_STATE {
        return None;
    }
    let state = KeptState { version: data.remove(keys.version)?.parse().ok()?, bytes: bytes.0 };
    Some(Some(Held { policy: data.remove(keys.policy)?, state }))
}
