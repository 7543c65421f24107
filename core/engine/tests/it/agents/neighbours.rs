//! Members look after those beside them.

use super::world::AgentWorld;
use crate::common::job;

/// A pod's network that is gone, on a node that is well: those beside it are the second witness.
#[test]
fn who_is_not_heard_of_and_not_reached_by_those_beside_it_is_lost() {
    let mut world = AgentWorld::running(job(1, 4, 5));
    let uids: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    world.out_of_reach.insert(uids[2].clone());
    world.go(300);
    assert_eq!(world.generation(), 1, "it is heard of");
    world.cut.insert(uids[2].clone());
    world.go(14);
    assert_eq!(world.generation(), 1, "not long enough");
    world.go(3);
    assert_eq!((world.generation(), world.members()), (2, vec![0, 1, 3]));
    world.go(30);
    assert_eq!((world.members().len(), world.state.failures), (4, 0), "it is replaced, for free");
    assert!(world.pods.iter().all(|p| p.uid != uids[2]), "its pod is not left running");
    world.check_settled();
}

/// One that can't reach anybody tells of all beside it, and is believed only where it is not alone with that.
#[test]
fn one_neighbour_that_reaches_it_is_enough_and_silent_ones_say_nothing() {
    let mut world = AgentWorld::running(job(1, 4, 5));
    let uids: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    world.cut.insert(uids[2].clone());
    world.go(60);
    for (out, says) in [(vec!["3"], false), (vec!["1"], false), (vec!["1", "3"], true)] {
        let by = |rank: &str| out.contains(&rank);
        for rank in ["1", "3"] {
            let uid = &uids[rank.parse::<usize>().unwrap()];
            let record = world.group.members.get_mut(uid).unwrap();
            record.report.out_of_reach = if by(rank) { vec![uids[2].clone()] } else { Vec::new() };
        }
        world.operate(usize::MAX);
        assert_eq!(world.generation() > 1, says, "told by {out:?}");
    }
}
