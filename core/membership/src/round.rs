use serde::{Deserialize, Serialize};

use crate::ReplicaTypes;

/// One fixed membership of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The job, as `namespace/name`.
    pub job: String,
    /// Grows by one with every round of the job; the fence against late messages. From 1.
    pub generation: u64,
    /// Identity of the run: `<job uid>-<generation>`.
    pub id: String,
    /// In rank order.
    pub members: Vec<Member>,
    /// Position in `members` of the one the others connect to. [`Round::plan`] makes it 0: torch and JAX both expect
    /// the process of rank 0 to serve the rendezvous.
    pub coordinator: usize,
    /// Port on the coordinator; changes with the generation so that a lingering socket can't get in the way.
    pub port: u16,
    /// Which of its members are something else than workers.
    #[serde(default, skip_serializing_if = "ReplicaTypes::is_empty")]
    pub types: ReplicaTypes,
}

/// One member of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index in the job (0 is the master); stable over rounds.
    pub index: u32,
    /// Host name or address that the other members reach it by.
    pub address: String,
    /// Pod UID, where the member is known already (rounds with an agent).
    pub uid: Option<String>,
    /// Processes it runs, at least 1.
    pub processes: u32,
}

/// Someone who may be in the next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who it would be.
    pub member: Member,
    /// Since when it has been healthy, in milliseconds since the Unix epoch. `None`: not known to be healthy, or not
    /// there yet (pods that are made for the round).
    pub healthy_since_ms: Option<u64>,
}

/// The ports that the rounds of a job take turns with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The first of them, 1024 to 65535.
    pub base: u16,
    /// How many there are, at least 1; what would go over 65535 is left out.
    pub span: u16,
}

impl Default for Ports {
    /// 29500 (torch's default) to 29563.
    fn default() -> Self {
        Ports { base: 29500, span: 64 }
    }
}

impl Ports {
    /// The port of a generation.
    pub fn of(self, generation: u64) -> u16 {
        let room = u64::from(u16::MAX - self.base) + 1;
        let span = u64::from(self.span.max(1)).min(room);
        // The remainder is below 65536 and base + remainder is at most 65535 by the choice of `span`.
        self.base.saturating_add(u16::try_from(generation % span).unwrap_or(0))
    }
}

impl Round {
    /// The round of these candidates; `None` if there are none.
    ///
    /// The coordinator is the candidate that has been healthy longest, or the lowest index where none is known to be
    /// healthy. It gets rank 0, the others follow in the order of their index, so ranks are dense. Two candidates with
    /// one index (a pod and its replacement) count once: the healthier stays.
    pub fn plan(job: &str, uid: &str, generation: u64, candidates: Vec<Candidate>, ports: Ports) -> Option<Round> {
        let mut candidates = candidates;
        let age = |c: &Candidate| c.healthy_since_ms.unwrap_or(u64::MAX);
        candidates.sort_by_key(|c| (c.member.index, age(c)));
        candidates.dedup_by_key(|c| c.member.index);
        let first = candidates.iter().enumerate().min_by_key(|(at, c)| (age(c), *at)).map(|(at, _)| at)?;
        let coordinator = candidates.remove(first);
        let members = std::iter::once(coordinator).chain(candidates).map(|c| c.member).collect();
        Some(Round {
            job: job.to_owned(),
            generation,
            id: format!("{uid}-{generation}"),
            members,
            coordinator: 0,
            port: ports.of(generation),
            types: ReplicaTypes::default(),
        })
    }

    /// The same round, of a job that has these types.
    #[must_use]
    pub fn with_types(self, types: &ReplicaTypes) -> Round {
        Round { types: types.clone(), ..self }
    }

    /// Type of the member at this rank, and its place among those of its type: by index, and by rank among workers, whose
    /// indexes have gaps. `None` if there is no such member.
    pub fn type_of(&self, rank: usize) -> Option<(&str, usize)> {
        let me = self.members.get(rank)?;
        let place = match self.types.place(me.index) {
            Some((_, within)) => usize::try_from(within).unwrap_or(usize::MAX),
            None => self.members[..rank].iter().filter(|m| self.types.is_worker(m.index)).count(),
        };
        Some((self.types.name(me.index), place))
    }

    /// The rank of the member with this index, if it is in the round.
    pub fn rank_of(&self, index: u32) -> Option<usize> {
        self.members.iter().position(|m| m.index == index)
    }

    /// Processes of all members together: the world size of a framework.
    pub fn processes(&self) -> u32 {
        self.members.iter().fold(0, |sum, m| sum.saturating_add(m.processes.max(1)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn candidate(index: u32, healthy_since_ms: Option<u64>) -> Candidate {
        let member = Member { index, address: format!("host-{index}"), uid: None, processes: 1 };
        Candidate { member, healthy_since_ms }
    }

    #[test]
    fn the_longest_healthy_member_coordinates_as_rank_0() {
        let all = vec![candidate(0, Some(30)), candidate(1, None), candidate(2, Some(10)), candidate(3, Some(20))];
        let round = Round::plan("ns/j", "u", 7, all, Ports::default()).unwrap();
        assert_eq!(round.members.iter().map(|m| m.index).collect::<Vec<_>>(), [2, 0, 1, 3]);
        assert_eq!((round.coordinator, round.port, round.id.as_str()), (0, 29507, "u-7"));
    }

    #[test]
    fn new_pods_are_ranked_by_index() {
        let all = vec![candidate(2, None), candidate(0, None), candidate(3, None)];
        let round = Round::plan("ns/j", "u", 1, all, Ports::default()).unwrap();
        assert_eq!(round.members.iter().map(|m| m.index).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(round.rank_of(3), Some(2));
        assert_eq!(round.rank_of(1), None);
    }

    #[test]
    fn no_candidates_no_round() {
        assert_eq!(Round::plan("ns/j", "u", 1, Vec::new(), Ports::default()), None);
    }

    #[test]
    fn ports_stay_in_range_and_change_with_the_generation() {
        let top = Ports { base: 65535, span: 64 };
        assert_eq!((top.of(1), top.of(u64::MAX)), (65535, 65535));
        let p = Ports::default();
        assert_ne!(p.of(1), p.of(2));
        assert_eq!(p.of(1), p.of(65));
        assert_eq!(Ports { base: 29500, span: 0 }.of(9), 29500);
    }

    proptest! {
        #[test]
        fn ranks_are_dense_and_every_index_is_in_once(
            all in proptest::collection::vec((0u32..20, proptest::option::of(0u64..1000)), 1..30),
        ) {
            let mut want: Vec<u32> = all.iter().map(|c| c.0).collect();
            want.sort_unstable();
            want.dedup();
            let all = all.into_iter().map(|(i, h)| candidate(i, h)).collect();
            let round = Round::plan("ns/j", "u", 1, all, Ports::default()).unwrap();
            let mut got: Vec<u32> = round.members.iter().map(|m| m.index).collect();
            prop_assert_eq!(round.rank_of(got[0]), Some(0));
            got.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }
}
