use eto_membership::Refused;

/// Why something about etcd failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The settings can't work.
    #[error("etcd settings: {0}")]
    Settings(String),
    /// A file named in the settings.
    #[error("etcd settings: {path}: {why}")]
    File {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// No member of etcd answered in time. It is tried again by whoever asked.
    #[error("etcd does not answer ({endpoint}): {why}")]
    Unreached {
        /// The last one that was tried.
        endpoint: String,
        /// What it said, if anything.
        why: String,
    },
    /// etcd answered that it won't: wrong credentials, no permission, no space.
    #[error("etcd refuses ({endpoint}): {why}")]
    Refused {
        /// Who answered.
        endpoint: String,
        /// What it said.
        why: String,
    },
    /// The revision asked for is compacted away.
    #[error("the revision is compacted")]
    Compacted,
    /// The lease is gone: it ran out, or etcd lost it.
    #[error("the lease is gone")]
    LeaseLost,
}

/// Why an assignment was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The one in force is newer, or has other members under the same generation. Plan anew from what is in force.
    #[error("the assignment is stale: {0}")]
    Stale(#[from] Refused),
    /// Somebody else leads, or etcd has lost who leads. Call [`crate::Store::lead`] again if the Lease is still ours.
    #[error("another replica leads")]
    NotLeading,
    /// etcd is away or refuses. It may have been written: writing it again does no harm.
    #[error(transparent)]
    Unreached(#[from] StoreError),
}
