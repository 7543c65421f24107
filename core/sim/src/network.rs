//! What pods reach of each other.

use crate::faults::Mend;
use crate::world::{What, World};

impl World {
    pub(crate) fn cut_agent(&mut self, long: u64) -> bool {
        let Some((uid, ..)) = self.trainer() else { return false };
        self.note(|_| format!("the agent of {uid} is not heard of for {long} ms"));
        self.containers.get_mut(&uid).into_iter().for_each(|c| c.cut = true);
        self.after(long, What::Mend(Mend::Agent(uid)));
        true
    }

    /// A pod's network is gone, and its node knows nothing of it.
    pub(crate) fn cut_pod(&mut self, long: u64) -> bool {
        let Some((uid, ..)) = self.trainer() else { return false };
        self.note(|_| format!("the network of {uid} is gone for {long} ms"));
        self.containers.get_mut(&uid).into_iter().for_each(|c| (c.cut, c.isolated) = (true, true));
        self.after(long, What::Mend(Mend::Agent(uid)));
        true
    }

    pub(crate) fn reconnect(&mut self, uid: &str) {
        if let Some(container) = self.containers.get_mut(uid) {
            (container.cut, container.isolated) = (false, false);
        }
    }

    /// Whether the pod's network carries to its peers.
    pub(crate) fn has_network(&self, uid: &str) -> bool {
        let container = self.containers.get(uid).filter(|c| !c.isolated && !c.dark);
        container.is_some_and(|c| self.nodes.get(&c.node).is_some_and(|n| n.on && n.linked))
    }

    /// An agent tries those beside it in its round.
    pub(crate) fn look_beside(&mut self, uid: &str) {
        let Some(container) = self.containers.get_mut(uid) else { return };
        let (agent, mut beside) = (&container.agent, std::mem::take(&mut container.beside));
        let round = agent.assignment().filter(|_| agent.is_ready()).map(|a| &a.round);
        beside.enter(round.zip(agent.rank()));
        let own = self.has_network(uid);
        let tried: Vec<(String, bool)> =
            beside.all().map(|(other, _)| (other.to_owned(), own && self.has_network(other))).collect();
        for (other, reached) in &tried {
            beside.tried(other, *reached);
        }
        if let Some(container) = self.containers.get_mut(uid) {
            container.beside = beside;
        }
    }
}
