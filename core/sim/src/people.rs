//! What people do to a job and to its cluster.

use crate::faults::{Fault, Mend};
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
        let on: Vec<String> = self
            .api
            .pods
            .values()
            .filter(|p| p.node.as_ref() == Some(&name) && !p.is_ended())
            .map(|p| p.uid.clone())
            .collect();
        for uid in &on {
            self.change_pod(uid, |p| p.disrupted = true);
            let delay = self.random.between(0, 20_000);
            self.after(delay, What::Mend(Mend::Evicted(uid.clone())));
        }
        let open = self.random.between(20_000, 90_000);
        self.after(open, What::Mend(Mend::Uncordon(name)));
        !on.is_empty()
    }
}
