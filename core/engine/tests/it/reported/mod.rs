//! What users of other operators reported, each told as a test that bears the numbers of the threads: it does not happen
//! here. docs/reported.md has the list.

mod rendezvous;
mod restarts;
mod scaling;

use crate::agents::world::AgentWorld;

impl AgentWorld {
    /// UIDs of the pods there are, by index.
    fn pods_by_index(&self) -> Vec<String> {
        let mut all: Vec<_> = self.pods.iter().map(|p| (p.index, p.uid.clone())).collect();
        all.sort();
        all.into_iter().map(|(_, uid)| uid).collect()
    }

    /// How often processes of this worker were started.
    fn starts_of(&self, index: u32) -> usize {
        self.starts.iter().filter(|(i, _)| *i == index).count()
    }

    /// The node of this pod is gone, and with it all that ran there.
    fn lose_node_of(&mut self, at: usize) {
        self.sick.insert(self.pods[at].node.clone().unwrap());
    }
}
