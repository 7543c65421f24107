use std::collections::HashMap;

use crate::contract::WorkerRequest;

/// What earlier answers of the same cycle have taken: pods that are about to be made do not show on their nodes yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservations {
    by_node: HashMap<String, WorkerRequest>,
}

impl Reservations {
    /// Takes the request of one worker on a node.
    pub fn reserve(&mut self, node: &str, request: &WorkerRequest) {
        let taken = self.by_node.entry(node.to_owned()).or_default();
        taken.cpu += request.cpu;
        taken.memory += request.memory;
        taken.gpus += request.gpus;
    }

    /// What is reserved on a node.
    pub fn on(&self, node: &str) -> WorkerRequest {
        self.by_node.get(node).copied().unwrap_or_default()
    }

    /// Forgets all: a new cycle begins.
    pub fn clear(&mut self) {
        self.by_node.clear();
    }
}
