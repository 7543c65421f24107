//! What followers and replicas show.

use std::sync::Arc;
use std::time::Duration;

use eto_gateway::{Change, Changes, Groups, Replica};
use eto_membership::Group;

use super::until;

pub(crate) async fn synced(groups: &Groups) {
    until("the groups are in sync", || async { groups.synced() }).await;
}

/// Reads changes until one shows this; what it showed.
pub(crate) async fn shows(
    changes: &mut Changes,
    job: &str,
    what: &str,
    holds: impl Fn(Option<&Group>) -> bool,
) -> Option<Arc<Group>> {
    let found = async {
        loop {
            match changes.next().await {
                Change::Group { job_uid, group, .. } if job_uid == job && holds(group.as_deref()) => return group,
                _ => {}
            }
        }
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, found).await.unwrap_or_else(|_| panic!("not told within 30 s: {what}"))
}

pub(crate) async fn lease(replica: &Replica) -> i64 {
    let mut lease = replica.lease();
    *lease.wait_for(|l| *l != 0).await.unwrap()
}

pub(crate) fn generation(group: Option<&Group>) -> u64 {
    group.and_then(|g| g.assignment.as_ref()).map_or(0, |a| a.round.generation)
}
