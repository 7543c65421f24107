//! Gives back what compaction leaves free in the files of etcd's members, and ends the alarm of one that was full.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmMember, AlarmOptions, AlarmType, Client, ResponseHeader, StatusResponse};

use crate::{Store, StoreError};

/// For rewriting the file: about a second for 100 MiB, and it may be of 8 GiB.
const PATIENCE: Duration = Duration::from_secs(120);

/// A member whose file was rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// Where the member answers.
    pub endpoint: String,
    /// Bytes of its file before.
    pub before: i64,
    /// Bytes of its file now.
    pub after: i64,
}

/// What a member says of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    id: u64,
    size: i64,
    used: i64,
    full: bool,
    leads: bool,
}

impl Store {
    /// Rewrites the file of one member of etcd where at least half of it is free and it has `worth` bytes or more, or where
    /// it raised the alarm that it is full; `None` = of none. The member answers nobody meanwhile, so that nothing is done
    /// while another one does not answer, and the leader among them is the last.
    ///
    /// # Errors
    /// A member does not answer or refuses. Nothing was lost by it.
    pub async fn defragment(&self, worth: i64) -> Result<Option<Defragmented>, StoreError> {
        let etcd = &self.inner.etcd;
        let mut members = Vec::new();
        for at in 0..etcd.count() {
            let client = etcd.member(at).await?;
            let usage = usage(&etcd.ask(at, PATIENCE, client.maintenance_client().status()).await?);
            members.push((client, usage));
        }
        if let Some((client, _)) = members.first() {
            let mut client = client.maintenance_client();
            let get = client.alarm(AlarmAction::Get, AlarmType::Nospace, None);
            let full: Vec<u64> =
                etcd.ask(0, PATIENCE, get).await?.alarms().iter().map(AlarmMember::member_id).collect();
            for (_, usage) in &mut members {
                usage.full = full.contains(&usage.id);
            }
        }
        let usages: Vec<&Usage> = members.iter().map(|(_, usage)| usage).collect();
        let Some(at) = next(&usages, worth) else { return Ok(None) };
        let Some((client, usage)) = members.get(at) else { return Ok(None) };
        etcd.ask(at, PATIENCE, client.maintenance_client().defragment()).await?;
        let after = etcd.ask(at, PATIENCE, client.maintenance_client().status()).await?.db_size();
        if usage.full {
            self.end_alarm(at, client, usage.id).await?;
        }
        Ok(Some(Defragmented { endpoint: etcd.endpoint(at).to_owned(), before: usage.size, after }))
    }

    /// etcd takes no writes until its alarm is ended, however much room there is.
    async fn end_alarm(&self, at: usize, client: &Client, member: u64) -> Result<(), StoreError> {
        let mut client = client.maintenance_client();
        let mut of = AlarmOptions::new();
        of.with_member(member);
        let end = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of));
        self.inner.etcd.ask(at, PATIENCE, end).await.map(drop)
    }
}

fn usage(said: &StatusResponse) -> Usage {
    let id = said.header().map_or(0, ResponseHeader::member_id);
    Usage { id, size: said.db_size(), used: said.raft_used_db_size(), full: false, leads: said.leader() == id }
}

/// The member whose turn it is.
fn next(members: &[&Usage], worth: i64) -> Option<usize> {
    let wants = |u: &&(usize, &&Usage)| {
        let half_free = u.1.size >= worth && u.1.used <= u.1.size / 2;
        half_free || (u.1.full && u.1.used < u.1.size)
    };
    let all: Vec<(usize, &&Usage)> = members.iter().enumerate().collect();
    all.iter().filter(wants).min_by_key(|(at, u)| (u.leads, *at)).map(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1024 * 1024;
    const WORTH: i64 = 100 * MIB;

    fn of(size: i64, used: i64) -> Usage {
        Usage { size: size * MIB, used: used * MIB, ..Usage::default() }
    }

    #[test]
    fn a_file_is_rewritten_where_that_gives_room() {
        assert_eq!(next(&[&of(99, 1)], WORTH), None, "too small to be worth it");
        assert_eq!(next(&[&of(200, 101)], WORTH), None, "more than half of it is in use");
        assert_eq!(next(&[&of(200, 100)], WORTH), Some(0));
        assert_eq!(next(&[&of(20, 19)], WORTH), None);
        assert_eq!(next(&[&Usage { full: true, ..of(20, 19) }], WORTH), Some(0), "it takes no writes as it is");
        assert_eq!(next(&[&Usage { full: true, ..of(20, 20) }], WORTH), None, "there is nothing to gain");
        assert_eq!(next(&[], WORTH), None);
    }

    #[test]
    fn the_leader_is_the_last() {
        let leader = Usage { leads: true, ..of(200, 10) };
        assert_eq!(next(&[&leader, &of(200, 10), &of(200, 10)], WORTH), Some(1));
        assert_eq!(next(&[&leader, &of(20, 10), &of(20, 10)], WORTH), Some(0));
    }
}
