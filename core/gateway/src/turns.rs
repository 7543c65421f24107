//! Who waits for a turn.

use std::collections::{BTreeMap, HashMap};

/// Names that wait, each once, served in the order in which they came: whoever is first by name would else be served
/// again and again while others wait.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: BTreeMap<u64, String>,
    turn_of: HashMap<String, u64>,
    next: u64,
}

impl Turns {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// One that waits already keeps its place.
    pub(crate) fn insert(&mut self, name: &str) {
        if !self.turn_of.contains_key(name) {
            self.turn_of.insert(name.to_owned(), self.next);
            self.waiting.insert(self.next, name.to_owned());
            self.next += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(turn) = self.turn_of.remove(name) {
            self.waiting.remove(&turn);
        }
    }

    pub(crate) fn pop_first(&mut self) -> Option<String> {
        let (_, name) = self.waiting.pop_first()?;
        self.turn_of.remove(&name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_turn_in_the_order_they_came() {
        let mut turns = Turns::default();
        for name in ["c", "a", "b", "a", "c"] {
            turns.insert(name);
        }
        turns.remove("a");
        turns.remove("unknown");
        assert_eq!(turns.len(), 2);
        assert_eq!(turns.pop_first().as_deref(), Some("c"));
        turns.insert("a");
        turns.insert("c");
        let rest: Vec<_> = std::iter::from_fn(|| turns.pop_first()).collect();
        assert_eq!(rest, ["b", "a", "c"]);
    }
}
