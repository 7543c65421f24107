//! Members look after those beside them in their round: a second witness where one is not heard of any more.
//!
//! Ranks are a ring, so that each member has two neighbours (one in a round of two) and the cost does not grow with the
//! round. A member tells of a neighbour that it *used to reach*: where a network policy never lets it, it has nothing to say.

use std::collections::BTreeMap;

use crate::Round;

/// How often a member tries its neighbours, in milliseconds.
pub const PROBE_EVERY_MS: u64 = 5_000;
/// How long it waits for an answer, in milliseconds. That nothing listens there is one.
pub const PROBE_TIMEOUT_MS: u64 = 2_000;
/// Tries in a row after which a neighbour counts as out of reach.
const MISSES: u32 = 3;

/// Ranks beside `rank` in a round of `size` members: none, one or two, in order.
pub fn neighbours(rank: usize, size: usize) -> Vec<usize> {
    if size < 2 || rank >= size {
        return Vec::new();
    }
    let mut both = vec![(rank + size - 1) % size, (rank + 1) % size];
    both.sort_unstable();
    both.dedup();
    both
}

/// What a member knows of those beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// By pod UID.
    known: BTreeMap<String, Known>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    address: String,
    reached: bool,
    missed: u32,
}

impl Neighbours {
    /// This member is at `rank` in that round now; `None` = in no round. Of who stays beside it, what was known stays. True if
    /// somebody is new beside it: who is not tried at once may be out of reach before it was ever reached.
    pub fn enter(&mut self, place: Option<(&Round, usize)>) -> bool {
        let mut before = std::mem::take(&mut self.known);
        let Some((round, rank)) = place else { return false };
        let mut news = false;
        let beside = neighbours(rank, round.members.len()).into_iter().map(|i| &round.members[i]);
        for member in beside.filter(|m| !m.address.is_empty()) {
            let Some(uid) = member.uid.clone() else { continue };
            let known = before.remove(&uid).filter(|k| k.address == member.address);
            news |= known.is_none();
            let fresh = || Known { address: member.address.clone(), ..Known::default() };
            self.known.insert(uid, known.unwrap_or_else(fresh));
        }
        news
    }

    /// UID and address of each.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.known.iter().map(|(uid, k)| (uid.as_str(), k.address.as_str()))
    }

    /// What became of a try. True if that changes what is to be told.
    pub fn tried(&mut self, uid: &str, reached: bool) -> bool {
        let before = self.out_of_reach();
        if let Some(known) = self.known.get_mut(uid) {
            known.reached |= reached;
            known.missed = if reached { 0 } else { known.missed.saturating_add(1) };
        }
        self.out_of_reach() != before
    }

    /// UIDs of those that were reached before and are not any more.
    pub fn out_of_reach(&self) -> Vec<String> {
        self.known.iter().filter(|(_, k)| k.reached && k.missed >= MISSES).map(|(uid, _)| uid.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Candidate, Member, Ports};

    fn round(uids: &[&str]) -> Round {
        let member = |(index, uid): (u32, &&str)| Candidate {
            member: Member { index, address: format!("10.0.0.{uid}"), uid: Some((*uid).to_owned()), processes: 1 },
            healthy_since_ms: None,
        };
        Round::plan("ns/j", "u", 1, (0..).zip(uids).map(member).collect(), Ports::default()).unwrap()
    }

    #[test]
    fn ranks_are_a_ring() {
        assert_eq!((neighbours(0, 1), neighbours(1, 2), neighbours(5, 2)), (vec![], vec![0], vec![]));
        assert_eq!((neighbours(0, 5), neighbours(2, 5), neighbours(4, 5)), (vec![1, 4], vec![1, 3], vec![0, 3]));
    }

    #[test]
    fn who_was_reached_and_is_not_three_times_in_a_row_is_told_of_until_it_is() {
        let mut me = Neighbours::default();
        me.enter(Some((&round(&["1", "2", "3", "4"]), 1)));
        assert_eq!(me.all().collect::<Vec<_>>(), [("1", "10.0.0.1"), ("3", "10.0.0.3")]);
        assert!(![false; 9].map(|reached| me.tried("3", reached)).contains(&true), "it never was");
        assert!(!me.tried("1", true));
        assert_eq!([false; 4].map(|reached| me.tried("1", reached)), [false, false, true, false]);
        assert_eq!(me.out_of_reach(), ["1"]);
        assert!(me.tried("1", true) && me.out_of_reach().is_empty());
        assert!(!me.tried("9", false), "of another round");
    }

    #[test]
    fn another_round_keeps_what_is_known_of_who_stays() {
        let mut me = Neighbours::default();
        assert!(me.enter(Some((&round(&["1", "2", "3"]), 0))));
        for reached in [true, false, false, false] {
            me.tried("2", reached);
            me.tried("3", reached);
        }
        assert!(!me.enter(Some((&round(&["1", "2"]), 0))), "nobody new");
        assert_eq!(me.out_of_reach(), ["2"]);
        me.enter(None);
        assert!(me.out_of_reach().is_empty() && me.all().next().is_none());
    }
}
