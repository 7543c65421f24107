//! The environment of new pods.

use std::borrow::Cow;
use std::sync::Arc;

use eto_membership::{FrameworkKind, Round, member_env};

/// The environment of a new pod. Each member is told of all others, so that of a whole round grows with the square of their
/// number: it is spelt out when its pod is made, and not before.
#[derive(Clone, Debug, PartialEq)]
pub enum PodEnv {
    /// These variables.
    Given(Vec<(String, String)>),
    /// Those of the member at this rank.
    Member(Arc<RoundEnv>, usize),
}

/// What the members of a round have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundEnv {
    pub(super) round: Round,
    pub(super) framework: FrameworkKind,
    /// Variables beside those of the round.
    pub(super) more: Vec<(String, String)>,
}

impl Default for PodEnv {
    /// None.
    fn default() -> Self {
        PodEnv::Given(Vec::new())
    }
}

impl From<Vec<(String, String)>> for PodEnv {
    fn from(variables: Vec<(String, String)>) -> Self {
        PodEnv::Given(variables)
    }
}

impl PodEnv {
    /// Its variables. Costs O(members).
    pub fn variables(&self) -> Cow<'_, [(String, String)]> {
        match self {
            PodEnv::Given(variables) => Cow::Borrowed(variables),
            PodEnv::Member(of, rank) => {
                let mut variables = member_env(of.framework, &of.round, *rank);
                variables.extend_from_slice(&of.more);
                Cow::Owned(variables)
            }
        }
    }
}
