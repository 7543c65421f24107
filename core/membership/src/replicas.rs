//! Members of a job that are something else than workers: a chief, parameter servers, an evaluator.

use serde::{Deserialize, Serialize};

/// What all members are that are of no type of their own.
pub const WORKER: &str = "worker";
/// The type whose end is the job's, as in TensorFlow.
pub const CHIEF: &str = "chief";

/// Members of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaType {
    /// `chief`, `ps`, `evaluator` or a name of the user's own: a DNS label, and not [`WORKER`].
    pub name: String,
    /// How many there are, at least 1.
    pub replicas: u32,
}

/// The types of a job, in the order in which they take its first indexes. All further members are workers. Empty for a
/// job of workers alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplicaTypes(pub Vec<ReplicaType>);

impl ReplicaTypes {
    /// Whether all members are workers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many members are not workers: their indexes are those below this number.
    pub fn count(&self) -> u32 {
        self.0.iter().fold(0, |sum, t| sum.saturating_add(t.replicas))
    }

    /// Position of its type in the list, and index within the type, of the member with this index in the job; `None` = a
    /// worker.
    pub fn place(&self, index: u32) -> Option<(usize, u32)> {
        let mut rest = index;
        for (at, of) in self.0.iter().enumerate() {
            if rest < of.replicas {
                return Some((at, rest));
            }
            rest -= of.replicas;
        }
        None
    }

    /// The type of the member with this index in the job.
    pub fn name(&self, index: u32) -> &str {
        self.place(index).and_then(|(at, _)| self.0.get(at)).map_or(WORKER, |t| t.name.as_str())
    }

    /// Whether the member with this index is a worker.
    pub fn is_worker(&self, index: u32) -> bool {
        index >= self.count()
    }

    /// Index in the job of the (first) chief, if there is one.
    pub fn chief(&self) -> Option<u32> {
        let at = self.0.iter().position(|t| t.name == CHIEF)?;
        Some(self.0[..at].iter().fold(0, |sum, t| sum.saturating_add(t.replicas)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(all: &[(&str, u32)]) -> ReplicaTypes {
        ReplicaTypes(all.iter().map(|(name, n)| ReplicaType { name: (*name).to_owned(), replicas: *n }).collect())
    }

    #[test]
    fn types_take_the_first_indexes_in_their_order() {
        let of = types(&[("ps", 2), ("chief", 1)]);
        let names: Vec<&str> = (0..5).map(|i| of.name(i)).collect();
        assert_eq!(names, ["ps", "ps", "chief", WORKER, WORKER]);
        assert_eq!((0..4).map(|i| of.place(i)).collect::<Vec<_>>(), [Some((0, 0)), Some((0, 1)), Some((1, 0)), None]);
        assert_eq!((of.count(), of.chief(), of.is_worker(2), of.is_worker(3)), (3, Some(2), false, true));
        assert_eq!(types(&[("ps", 1)]).chief(), None);
    }

    #[test]
    fn without_types_all_are_workers() {
        let none = ReplicaTypes::default();
        assert_eq!((none.count(), none.name(0), none.place(0), none.chief()), (0, WORKER, None, None));
        assert!(none.is_worker(0) && none.is_empty());
    }
}
