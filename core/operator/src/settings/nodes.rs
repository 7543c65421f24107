use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Span;
use crate::cache::leases::SHORTEST;

/// `[nodes]`: what is read off nodes beside whether they are ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Nodes {
    pub leaving_taints: String,
    pub leaving_conditions: String,
    pub leaving_annotations: String,
    pub faulty_conditions: String,
    pub quarantine_failures: u32,
    pub quarantine_half_life: Span,
    pub lease_grace: Span,
}

/// Taints by which others say that a node will go. A taint that a node bears all its life (that it is a spot instance) is
/// none of them, nor is one that only may be followed by its end.
const LEAVING_TAINTS: &str = "elastic.ai/leaving,\
                              aws-node-termination-handler/spot-itn@2m,\
                              aws-node-termination-handler/scheduled-maintenance,\
                              aws-node-termination-handler/asg-lifecycle-termination,\
                              cloud.google.com/impending-node-termination@30s,\
                              karpenter.sh/disrupted,karpenter.sh/disruption,\
                              ToBeDeletedByClusterAutoscaler,\
                              node.kubernetes.io/out-of-service,\
                              node.cloudprovider.kubernetes.io/shutdown";

/// Conditions by which monitors of managed clusters tell of GPUs that are at fault (EKS, AKS).
const FAULTY_CONDITIONS: &str = "AcceleratedHardwareReady=False,GPUMissing,GPUXIDErrors";

impl Default for Nodes {
    fn default() -> Self {
        Nodes {
            leaving_taints: LEAVING_TAINTS.to_owned(),
            leaving_conditions: String::new(),
            leaving_annotations: String::new(),
            faulty_conditions: FAULTY_CONDITIONS.to_owned(),
            quarantine_failures: 3,
            quarantine_half_life: Span::seconds(3600),
            lease_grace: Span::seconds(25),
        }
    }
}

/// A taint, a condition or an annotation that says something: `key`, `key=value`, and `@2m` behind it where the node has so
/// long from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    pub key: String,
    pub value: Option<String>,
    pub notice: Option<Duration>,
}

impl FromStr for Sign {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, notice) = match text.split_once('@') {
            Some((what, notice)) => (what, Some(Span::from_str(notice)?.get())),
            None => (text, None),
        };
        let (key, value) = match what.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (what, None),
        };
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(format!("`{text}` is no key, key=value or key@30s"));
        }
        Ok(Sign { key: key.to_owned(), value, notice })
    }
}

/// What is looked for on nodes and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    pub taints: Vec<Sign>,
    pub conditions: Vec<Sign>,
    pub annotations: Vec<Sign>,
    pub faults: Vec<Sign>,
}

impl Nodes {
    /// The lists, read.
    ///
    /// # Errors
    /// Which setting can't be read, and why.
    pub fn signs(&self) -> Result<Signs, String> {
        Ok(Signs {
            taints: list("leaving-taints", &self.leaving_taints)?,
            conditions: list("leaving-conditions", &self.leaving_conditions)?,
            annotations: list("leaving-annotations", &self.leaving_annotations)?,
            faults: list("faulty-conditions", &self.faulty_conditions)?,
        })
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.quarantine_half_life.get() < Duration::from_secs(1) {
            return Err(
                "nodes.quarantine-half-life is below 1s; quarantine-failures = 0 turns the quarantine off".to_owned()
            );
        }
        let grace = self.lease_grace.get();
        if !grace.is_zero() && grace < SHORTEST {
            return Err(format!(
                "nodes.lease-grace is below {}s: kubelets renew their leases every 10 s, and one renewal may come late; 0s turns it off",
                SHORTEST.as_secs()
            ));
        }
        self.signs().map(drop)
    }
}

fn list(name: &str, text: &str) -> Result<Vec<Sign>, String> {
    let entries = text.split(',').map(str::trim).filter(|e| !e.is_empty());
    entries.map(|e| e.parse().map_err(|why| format!("nodes.{name}: {why}"))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lists_are_read_and_what_is_wrong_is_named() {
        let signs = Nodes::default().signs().unwrap();
        let spot = Sign {
            key: "aws-node-termination-handler/spot-itn".into(),
            value: None,
            notice: Some(Duration::from_secs(120)),
        };
        assert_eq!((signs.taints.len(), signs.taints[1] == spot, signs.faults.len()), (10, true, 3));
        assert_eq!(signs.faults[0].value.as_deref(), Some("False"));
        let bad = |text: &str| Nodes { leaving_annotations: text.into(), ..Nodes::default() }.signs().unwrap_err();
        assert!(bad("a@soon").starts_with("nodes.leaving-annotations: not a duration"), "{}", bad("a@soon"));
        assert!(bad("a, =b").contains("`=b` is no key"), "{}", bad("a, =b"));
        assert_eq!(list("x", " a = b").unwrap_err(), "nodes.x: `a = b` is no key, key=value or key@30s");
    }
}
