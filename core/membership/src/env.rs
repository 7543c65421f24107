use crate::Round;

/// Which variables a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameworkKind {
    PyTorch,
    TensorFlow,
    Jax,
    Custom,
}

/// Variables that belong to the operator; a user's own values for them are overridden.
pub const RANK_VARIABLES: &[&str] = &[];

/// The environment of the member at `rank` (position in `round.members`).
pub fn member_env(_framework: FrameworkKind, _round: &Round, _rank: usize) -> Vec<(String, String)> {
    Vec::new()
}
