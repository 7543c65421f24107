//! `PodDisruptionBudgets`: those of the jobs, and those that others made.
//!
//! The API server evicts no pod that two budgets select: a job whose workers are under somebody else's budget gets none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_engine::job::JobKey;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};

/// After a write that failed for good, the next try for that job.
pub const HOLD: Duration = Duration::from_secs(300);

/// What is to be done about a job's budget. Of one that is there, with its UID: another one may have its name by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    Create(u32),
    Change(u32, String),
    Delete(String),
}

/// All budgets in the namespaces that are served.
#[derive(Debug, Default)]
pub struct Budgets {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The first list is whole.
    read: bool,
    known: HashMap<JobKey, Known>,
    /// Selectors of budgets that no job owns, by namespace and name.
    others: HashMap<String, HashMap<String, LabelSelector>>,
    listing: Option<HashSet<JobKey>>,
    /// Jobs whose budget could not be written, and since when.
    held: HashMap<JobKey, Instant>,
}

#[derive(Debug, PartialEq)]
struct Known {
    uid: String,
    /// UID of the ElasticJob that owns it; `None` = somebody else's.
    owner: Option<String>,
    min_available: Option<u32>,
    /// Of somebody else's.
    selector: Option<LabelSelector>,
}

/// Whom a change of a budget concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    Job(JobKey),
    /// All jobs of a namespace: somebody else's budget may select their pods.
    Namespace(String),
}

impl Inner {
    fn remove(&mut self, key: &JobKey) -> Option<Touched> {
        let known = self.known.remove(key)?;
        if let Some(others) = self.others.get_mut(&key.namespace) {
            others.remove(&key.name);
            if others.is_empty() {
                self.others.remove(&key.namespace);
            }
        }
        Some(known.touches(key))
    }

    /// Whether somebody else's budget selects pods with any of these sets of labels.
    fn is_others(&self, namespace: &str, labels: impl FnOnce() -> Vec<BTreeMap<String, String>>) -> bool {
        let Some(others) = self.others.get(namespace) else { return false };
        let sets = labels();
        let selects = |s: Selector| sets.iter().any(|labels| s.matches(labels));
        others.values().any(|s| Selector::try_from(s.clone()).is_ok_and(selects))
    }
}

impl Known {
    fn touches(&self, key: &JobKey) -> Touched {
        match self.owner {
            Some(_) => Touched::Job(key.clone()),
            None => Touched::Namespace(key.namespace.clone()),
        }
    }
}

impl Budgets {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A budget as the watch, or the answer to a write, shows it; whom that concerns, if it is news.
    pub fn seen(&self, budget: &PodDisruptionBudget) -> Option<Touched> {
        let (key, known) = (key(budget)?, known(budget));
        self.with(|i| {
            if let Some(listing) = &mut i.listing {
                listing.insert(key.clone());
            }
            if i.known.get(&key) == Some(&known) {
                return None;
            }
            i.remove(&key);
            // What was refused was about what it was before.
            i.held.remove(&key);
            if let Some(selector) = &known.selector {
                i.others.entry(key.namespace.clone()).or_default().insert(key.name.clone(), selector.clone());
            }
            let touched = known.touches(&key);
            i.known.insert(key, known);
            Some(touched)
        })
    }

    pub fn gone(&self, budget: &PodDisruptionBudget) -> Option<Touched> {
        let key = key(budget)?;
        self.with(|i| i.remove(&key))
    }

    /// The one of this UID is gone, by our own delete or by the answer to a write.
    pub fn forget(&self, key: &JobKey, uid: &str) {
        self.with(|i| {
            if i.known.get(key).is_some_and(|known| known.uid == uid) {
                i.remove(key);
            }
        });
    }

    pub fn list_begins(&self) {
        self.with(|i| i.listing = Some(HashSet::new()));
    }

    pub fn list_ends(&self) {
        self.with(|i| {
            let Some(listed) = i.listing.take() else { return };
            let missing: Vec<JobKey> = i.known.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            for key in &missing {
                i.remove(key);
            }
            i.read = true;
        });
    }

    /// It is not tried again for a while.
    pub fn hold(&self, key: &JobKey) {
        self.with(|i| i.held.insert(key.clone(), Instant::now()));
    }

    /// What is to be done so that the job (of this UID) has the budget that is `wanted`. Nothing before all are known.
    /// `labels`: of the job's pods, a set for each role; asked for only where somebody else has a budget in the namespace.
    pub fn due(
        &self,
        job: &JobKey,
        uid: &str,
        wanted: Option<u32>,
        labels: impl FnOnce() -> Vec<BTreeMap<String, String>>,
    ) -> Option<Due> {
        self.with(|i| {
            if !i.read {
                return None;
            }
            i.held.retain(|_, since| since.elapsed() < HOLD);
            let known = i.known.get(job);
            let own = known.filter(|k| k.owner.as_deref() == Some(uid));
            // Of a job that had the name before, or not ours at all: the garbage collector's, or its maker's.
            if i.held.contains_key(job) || (known.is_some() && own.is_none()) {
                return None;
            }
            match (own, wanted.filter(|_| !i.is_others(&job.namespace, labels))) {
                (None, Some(n)) => Some(Due::Create(n)),
                (Some(k), Some(n)) if k.min_available != Some(n) => Some(Due::Change(n, k.uid.clone())),
                (Some(k), None) => Some(Due::Delete(k.uid.clone())),
                _ => None,
            }
        })
    }
}

fn key(budget: &PodDisruptionBudget) -> Option<JobKey> {
    Some(JobKey { namespace: budget.metadata.namespace.clone()?, name: budget.metadata.name.clone()? })
}

fn known(budget: &PodDisruptionBudget) -> Known {
    let owners = budget.metadata.owner_references.iter().flatten();
    let job = owners.filter(|o| o.controller == Some(true)).find(|o| o.kind == "ElasticJob");
    let spec = budget.spec.as_ref();
    let min_available = match spec.and_then(|s| s.min_available.as_ref()) {
        Some(IntOrString::Int(n)) => u32::try_from(*n).ok(),
        _ => None,
    };
    let selector = spec.and_then(|s| s.selector.clone()).filter(|_| job.is_none());
    let uid = budget.metadata.uid.clone().unwrap_or_default();
    Known { uid, owner: job.map(|o| o.uid.clone()), min_available, selector }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn budget(name: &str, spec: &Value, owner: Option<&str>) -> PodDisruptionBudget {
        let reference = |uid: &str| json!([{"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "name": "j", "uid": uid, "controller": true}]);
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "uid": format!("{name} of {owner:?}"), "ownerReferences": owner.map(reference)}, "spec": spec,
        }))
        .unwrap()
    }

    /// Of the job's own.
    const UID: &str = "j of Some(\"u\")";

    fn due(budgets: &Budgets, wanted: Option<u32>) -> Option<Due> {
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        budgets.due(&key, "u", wanted, || {
            let of = |role: &str| [("team", "a"), ("role", role)].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            vec![of("worker"), of("ps")]
        })
    }

    fn read(known: &[PodDisruptionBudget]) -> Budgets {
        let budgets = Budgets::default();
        budgets.list_begins();
        for one in known {
            budgets.seen(one);
        }
        budgets.list_ends();
        budgets
    }

    #[test]
    fn a_budget_is_written_when_its_number_changes_and_not_else() {
        assert_eq!(due(&Budgets::default(), Some(2)), None, "what there is has not been read");
        let budgets = read(&[]);
        assert_eq!((due(&budgets, Some(2)), due(&budgets, None)), (Some(Due::Create(2)), None));
        let own = budget("j", &json!({"minAvailable": 2}), Some("u"));
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        assert_eq!((budgets.seen(&own), budgets.seen(&own)), (Some(Touched::Job(key)), None));
        assert_eq!((due(&budgets, Some(2)), due(&budgets, Some(1))), (None, Some(Due::Change(1, UID.into()))));
        assert_eq!(due(&budgets, None), Some(Due::Delete(UID.into())));
        budgets.list_begins();
        budgets.list_ends();
        assert_eq!(due(&budgets, Some(2)), Some(Due::Create(2)), "somebody took it away");
    }

    #[test]
    fn what_is_not_the_jobs_is_left_alone() {
        let of_another = read(&[budget("j", &json!({"minAvailable": 2}), Some("before"))]);
        assert_eq!((due(&of_another, Some(1)), due(&of_another, None)), (None, None));
        let by_hand = read(&[budget("j", &json!({"minAvailable": 2}), None)]);
        assert_eq!(due(&by_hand, Some(1)), None);
    }

    #[test]
    fn workers_under_somebody_elses_budget_get_none() {
        let theirs = |team: &str| budget("theirs", &json!({"selector": {"matchLabels": {"team": team}}}), None);
        let own = budget("j", &json!({"minAvailable": 2}), Some("u"));
        assert_eq!(due(&read(&[theirs("b"), own.clone()]), Some(2)), None);
        assert_eq!(due(&read(&[theirs("a")]), Some(2)), None);
        assert_eq!(
            due(&read(&[theirs("a"), own]), Some(2)),
            Some(Due::Delete(UID.into())),
            "two would let nobody be evicted"
        );
        let of_role = |role: &str| budget("theirs", &json!({"selector": {"matchLabels": {"role": role}}}), None);
        assert_eq!(due(&read(&[of_role("ps")]), Some(2)), None, "of one role is enough");
        assert_eq!(due(&read(&[of_role("evaluator")]), Some(2)), Some(Due::Create(2)));
        let all = budget("theirs", &json!({"selector": {}}), None);
        let budgets = read(std::slice::from_ref(&all));
        assert_eq!((due(&budgets, Some(2)), budgets.gone(&all)), (None, Some(Touched::Namespace("n".into()))));
        assert_eq!(due(&budgets, Some(2)), Some(Due::Create(2)));
    }

    #[test]
    fn one_that_can_not_be_written_is_not_tried_all_the_time() {
        let budgets = read(&[]);
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        budgets.hold(&key);
        assert_eq!(due(&budgets, Some(2)), None);
        budgets.seen(&budget("j", &json!({"minAvailable": 3}), Some("u")));
        assert_eq!(due(&budgets, Some(2)), Some(Due::Change(2, UID.into())), "it is another one by now");
    }

    #[test]
    fn our_own_delete_makes_no_other_budget_of_that_name_unknown() {
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        let budgets = read(&[budget("j", &json!({"minAvailable": 2}), Some("u"))]);
        budgets.seen(&budget("j", &json!({"minAvailable": 2}), None));
        budgets.forget(&key, UID);
        assert_eq!(due(&budgets, Some(2)), None, "somebody else's is there");
        let budgets = read(&[budget("j", &json!({"minAvailable": 2}), Some("u"))]);
        budgets.forget(&key, UID);
        assert_eq!(due(&budgets, Some(2)), Some(Due::Create(2)));
    }
}
