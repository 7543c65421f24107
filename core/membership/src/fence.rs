//! What keeps a late or mistaken writer out: the order of generations and orders.

use std::fmt;

use crate::protocol::{Assignment, Group, MemberRecord, MemberState, Order};

/// Why an assignment can't take the place of the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its generation is lower than one that was given out already.
    Older {
        /// The generation of the one in force.
        current: u64,
        /// The generation of the one refused.
        offered: u64,
    },
    /// It has the generation of the one in force and another round: members, ranks, coordinator or port differ.
    OtherRound {
        /// The generation that both have.
        generation: u64,
    },
    /// It has the round of the one in force and an order that was passed already.
    Backward {
        /// The generation that both have.
        generation: u64,
        /// The order in force.
        current: Order,
        /// The order refused.
        offered: Order,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Older { current, offered } => write!(f, "generation {offered} is older than {current}"),
            Refused::OtherRound { generation } => {
                write!(f, "generation {generation} has other members already: a change of members is a new generation")
            }
            Refused::Backward { generation, current, offered } => {
                write!(f, "generation {generation} is at order {current:?} and can't go back to {offered:?}")
            }
        }
    }
}

impl std::error::Error for Refused {}

impl Assignment {
    /// Whether this one may take the place of `current`. What is the same in all may, so that a write that was made
    /// twice does no harm.
    pub fn may_follow(&self, current: &Assignment) -> Result<(), Refused> {
        let generation = self.round.generation;
        if generation < current.round.generation {
            return Err(Refused::Older { current: current.round.generation, offered: generation });
        }
        if generation > current.round.generation {
            return Ok(());
        }
        if self.round != current.round || self.native != current.native {
            return Err(Refused::OtherRound { generation });
        }
        if self.order < current.order {
            return Err(Refused::Backward { generation, current: current.order, offered: self.order });
        }
        Ok(())
    }

    /// Whether nobody else of its run can have the rank of this member.
    pub(crate) fn keeps_rank(&self, rank: usize) -> bool {
        let index = self.round.members.get(rank).map(|m| m.index);
        self.native.is_none_or(|n| !n.alone) || self.ranks.get(rank).copied() == index
    }
}

impl Group {
    /// The highest generation that anything here speaks of; 0 where nothing does. The next round's is higher, also
    /// where the assignment was lost or is that of a backup: agents tell what they were given.
    pub fn highest_generation(&self) -> u64 {
        let assigned = self.assignment.as_ref().map_or(0, |a| a.round.generation);
        self.members.values().map(MemberRecord::highest_generation).fold(assigned, u64::max)
    }
}

impl MemberRecord {
    /// The highest generation that the member has told of; 0 where it has told of none.
    pub fn highest_generation(&self) -> u64 {
        let state = match self.report.state {
            MemberState::Idle => 0,
            MemberState::Running { generation } | MemberState::Exited { generation, .. } => generation,
        };
        let checkpoint = self.report.checkpoint.map_or(0, |c| c.generation);
        self.report.generation.max(state).max(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Checkpoint, FrameworkKind, Member, ReplicaTypes, Report, Round};

    fn assignment(generation: u64, indexes: &[u32], order: Order) -> Assignment {
        let member = |index| Member { index, address: format!("10.0.0.{index}"), uid: None, processes: 1 };
        let round = Round {
            job: "ns/j".into(),
            generation,
            id: format!("u-{generation}"),
            members: indexes.iter().copied().map(member).collect(),
            coordinator: 0,
            port: 29500,
            types: ReplicaTypes::default(),
        };
        Assignment::new(round, order, FrameworkKind::PyTorch, 1000)
    }

    #[test]
    fn generations_and_orders_only_grow() {
        let now = assignment(5, &[0, 1], Order::Run);
        assert_eq!(now.may_follow(&now), Ok(()));
        assert_eq!(assignment(6, &[0], Order::Stop).may_follow(&now), Ok(()));
        assert_eq!(assignment(5, &[0, 1], Order::End).may_follow(&now), Ok(()));
        let older = assignment(4, &[0, 1], Order::End).may_follow(&now);
        assert_eq!(older, Err(Refused::Older { current: 5, offered: 4 }));
        let other = assignment(5, &[0, 2], Order::Run).may_follow(&now);
        assert_eq!(other, Err(Refused::OtherRound { generation: 5 }));
        let back = assignment(5, &[0, 1], Order::Stop).may_follow(&now);
        assert_eq!(back, Err(Refused::Backward { generation: 5, current: Order::Run, offered: Order::Stop }));
    }

    #[test]
    fn what_agents_tell_counts_where_the_assignment_is_lost_or_old() {
        let mut group = Group::default();
        assert_eq!(group.highest_generation(), 0);
        group.assignment = Some(assignment(3, &[0], Order::Run));
        let mut tell = |uid: &str, report: Report| {
            let record = MemberRecord { pod: uid.into(), report, joined_ms: 0, suspected: false };
            group.members.insert(uid.into(), record);
            group.highest_generation()
        };
        assert_eq!(tell("a", Report { generation: 2, ..Report::default() }), 3);
        assert_eq!(tell("b", Report { state: MemberState::Running { generation: 4 }, ..Report::default() }), 4);
        let checkpoint = Some(Checkpoint { generation: 6, step: 1, at_ms: 1 });
        assert_eq!(tell("c", Report { generation: 5, checkpoint, ..Report::default() }), 6);
    }
}
