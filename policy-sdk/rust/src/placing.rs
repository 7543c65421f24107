//! Placing workers one after the other, and choosing whom to give up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Member, Node, Place, PlacementInput};

/// A level of the cluster's topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Domain {
    /// Single nodes.
    Node,
    /// Nodes with the same rack label.
    Rack,
    /// Nodes with the same zone label.
    Zone,
}

impl Domain {
    /// The node's domain at this level; `None` if it has no such label.
    pub fn of(self, node: &Node) -> Option<u32> {
        match self {
            Domain::Node => Some(node.row),
            Domain::Rack => node.rack,
            Domain::Zone => node.zone,
        }
    }
}

/// Where to take victims from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// The domain with the most members first: evens out.
    Most,
    /// The domain with the fewest members first: empties domains.
    Fewest,
}

/// The nodes and how many members each domain has while workers are being placed.
#[derive(Clone, Debug)]
pub struct Tally {
    level: Domain,
    members: BTreeMap<Option<u32>, u32>,
}

impl Tally {
    /// Counts the members that the nodes have now.
    pub fn new(level: Domain, nodes: &[Node]) -> Self {
        let mut members = BTreeMap::new();
        for node in nodes {
            let count: &mut u32 = members.entry(level.of(node)).or_default();
            *count = count.saturating_add(node.members);
        }
        Tally { level, members }
    }

    /// Members in the node's domain. Nodes without the label count as one domain.
    pub fn members(&self, node: &Node) -> u32 {
        self.members.get(&self.level.of(node)).copied().unwrap_or(0)
    }

    fn add(&mut self, node: &Node) {
        let count: &mut u32 = self.members.entry(self.level.of(node)).or_default();
        *count = count.saturating_add(1);
    }
}

impl PlacementInput {
    /// Places the workers of `add` one after the other on the node, among those with room, for which `rank` gives the
    /// lowest key (the first in the columns of equal ones; `None` = not there). What a worker takes is no longer free
    /// for the next. Workers for which no node is left are not in the answer: they are the scheduler's.
    pub fn place_by<K: Ord>(&self, level: Domain, mut rank: impl FnMut(&Node, &Tally) -> Option<K>) -> Vec<Place> {
        let mut nodes: Vec<Node> = self.nodes.iter().collect();
        let mut tally = Tally::new(level, &nodes);
        let mut places = Vec::with_capacity(self.add.len());
        for worker in &self.add {
            let best = nodes
                .iter_mut()
                .filter(|n| n.fits(&self.request))
                .filter_map(|n| Some((rank(n, &tally)?, n)))
                .min_by(|a, b| a.0.cmp(&b.0));
            let Some((_, node)) = best else { break };
            node.take(&self.request);
            tally.add(node);
            places.push(Place::preferred(*worker, node.row));
        }
        places
    }

    /// The `drop` members to give up: first those that are not ready; then, again and again, from the domain with the
    /// most or the fewest members, there from the node with the most or the fewest, there the highest index. Never one
    /// that is protected.
    pub fn victims_from(&self, crowd: Crowd, level: Domain) -> Vec<u32> {
        let nodes: Vec<Node> = self.nodes.iter().collect();
        let domain = |m: &Member| m.node.and_then(|row| nodes.get(row as usize)).and_then(|n| level.of(n));
        let mut groups = Groups::default();
        for member in self.members.iter() {
            groups.add(&member, domain(&member));
        }
        groups.take(self.drop as usize, crowd)
    }
}

/// A node of a domain, either of which may be unknown.
type Spot = (Option<u32>, Option<u32>);

/// Members by node, with the sizes that decide.
#[derive(Default)]
struct Groups {
    /// Index of members that are not ready.
    idle: Vec<u32>,
    /// Index of the others that may go, by spot.
    free: BTreeMap<Spot, Vec<u32>>,
    /// All members by domain and by spot, the protected ones too.
    domains: BTreeMap<Option<u32>, u32>,
    spots: BTreeMap<Spot, u32>,
    at: BTreeMap<u32, Spot>,
}

impl Groups {
    fn add(&mut self, member: &Member, domain: Option<u32>) {
        let spot = (domain, member.node);
        *self.domains.entry(domain).or_default() += 1;
        *self.spots.entry(spot).or_default() += 1;
        if member.protected {
            return;
        }
        self.at.insert(member.index, spot);
        if member.ready {
            self.free.entry(spot).or_default().push(member.index);
        } else {
            self.idle.push(member.index);
        }
    }

    fn take(mut self, count: usize, crowd: Crowd) -> Vec<u32> {
        let mut victims = Vec::new();
        self.idle.sort_unstable_by_key(|index| Reverse(*index));
        for index in std::mem::take(&mut self.idle).into_iter().take(count) {
            if let Some(spot) = self.at.get(&index).copied() {
                self.left(spot);
            }
            victims.push(index);
        }
        self.free.values_mut().for_each(|indexes| indexes.sort_unstable());
        while victims.len() < count {
            let size = |spot: &Spot| {
                let size = |n: Option<&u32>| i64::from(n.copied().unwrap_or(0));
                let sizes = (size(self.domains.get(&spot.0)), size(self.spots.get(spot)));
                if crowd == Crowd::Most { (-sizes.0, -sizes.1) } else { sizes }
            };
            let open = self.free.iter().filter(|(_, left)| !left.is_empty());
            let Some(spot) = open.map(|(spot, left)| (size(spot), Reverse(left.last().copied()), *spot)).min() else {
                break;
            };
            if let Some(index) = self.free.get_mut(&spot.2).and_then(Vec::pop) {
                victims.push(index);
            }
            self.left(spot.2);
        }
        victims
    }

    /// One member less there.
    fn left(&mut self, spot: Spot) {
        let less = |n: &mut u32| *n = n.saturating_sub(1);
        self.domains.entry(spot.0).and_modify(less);
        self.spots.entry(spot).and_modify(less);
    }
}
