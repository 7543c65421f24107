//! What people do to a job and to its cluster.

use eto_engine::time::Time;

use crate::faults::{Fault, Mend};
use crate::nodes::End;
use crate::world::{What, World};

impl World {
    /// The job's user changes the spec.
    pub(crate) fn user(&mut self, fault: Fault, long: u64) -> bool {
        let (min, max) = (self.api.spec.min, self.api.spec.max);
        if !self.api.up {
            return false;
        }
        match fault {
            Fault::Scale => {
                let size = self.random.size(min, max);
                self.note(|_| format!("the user wants {size} workers"));
                let before = self.api.spec.replicas;
                self.change_spec(|s| s.replicas = size);
                size != before
            }
            Fault::Suspend => {
                self.note(|_| "the user suspends the job".to_owned());
                self.change_spec(|s| s.suspend = true);
                self.after(long, What::Mend(Mend::Resume));
                true
            }
            _ => {
                let next = self.random.below(1000);
                self.note(|_| "the user changes the template".to_owned());
                self.change_spec(|s| {
                    if let Some(template) = &mut s.template {
                        template.hash = format!("t{next}");
                    }
                });
                true
            }
        }
    }

    /// Keeps new pods off a node.
    pub(crate) fn cordon(&mut self, name: &str) {
        self.note(|_| format!("{name} is closed for new pods"));
        self.nodes.get_mut(name).into_iter().for_each(|n| n.cordoned = true);
    }

    /// `kubectl drain`.
    pub(crate) fn drain(&mut self) -> bool {
        if !self.api.up {
            return false;
        }
        let Some(name) = self.some_node() else { return false };
        self.cordon(&name);
        let on = self.pods_on(&name);
        for uid in &on {
            self.change_pod(uid, |p| p.disrupted = true);
            let delay = self.random.between(0, 20_000);
            self.after(delay, What::Mend(Mend::Evicted(uid.clone())));
        }
        let open = self.random.between(20_000, 90_000);
        self.after(open, What::Mend(Mend::Uncordon(name)));
        !on.is_empty()
    }

    /// A taint that says that a node will go: an autoscaler's, or a spot notice.
    pub(crate) fn announce(&mut self) -> bool {
        if !self.api.up {
            return false;
        }
        let Some(name) = self.some_node() else { return false };
        self.cordon(&name);
        let left = self.random.between(1_000, 60_000);
        let spot = self.random.percent(50);
        let by = spot.then_some(Time(self.now + left));
        self.note(|_| format!("{name} is to go in {left} ms, known: {spot}"));
        self.nodes.get_mut(&name).into_iter().for_each(|n| n.leaving = Some(End { by }));
        self.tell_of_nodes();
        let stays = self.random.percent(20);
        if spot && !stays {
            let back = left + self.random.between(500, 60_000);
            self.after(left, What::Mend(Mend::Ends(name.clone())));
            self.after(back, What::Mend(Mend::Node(name.clone())));
            self.after(back, What::Mend(Mend::Uncordon(name)));
            return true;
        }
        if !stays {
            self.after(left, What::Mend(Mend::Emptied(name.clone())));
        }
        let open = left + self.random.between(0, 60_000);
        self.after(open, What::Mend(Mend::Uncordon(name)));
        true
    }

    /// What an autoscaler does with a node before it takes it away.
    pub(crate) fn empty(&mut self, name: &str) {
        for uid in self.pods_on(name) {
            self.change_pod(&uid, |p| p.disrupted = true);
            self.after(0, What::Mend(Mend::Evicted(uid)));
        }
    }

    fn pods_on(&self, name: &str) -> Vec<String> {
        let on = self.api.pods.values().filter(|p| p.node.as_deref() == Some(name) && !p.is_ended());
        on.map(|p| p.uid.clone()).collect()
    }
}
