//! Which signals the policies want with each job's config: asked once, not in each cycle.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eto_engine::contract::SignalWant;
use eto_engine::job::{JobSpec, Mode, ScalingSpec};
use eto_engine::policy::CallFailure;
use eto_engine::signals::Claims;
use eto_engine::time::Time;
use eto_engine::wants::{claimed, signal_ids};
use eto_policy_host::Snapshot;
use eto_signals::{Wants, promql};
use sha2::{Digest, Sha256};

/// A failed answer is asked for again after this long.
const RETRY: Duration = Duration::from_secs(60);
/// Above this many answers, those not used lately are dropped. Well above the number of jobs that one replica is made
/// for, each with a config of its own: a cache that is too small for a cycle would ask each policy in every cycle.
const MANY: usize = 65_536;
/// The same for the memory they take. Names, queries and messages are users' and policies' text, of any length.
const BYTES: usize = 64 * 1024 * 1024;
/// The same for the forms of queries.
const FORM_BYTES: usize = 16 * 1024 * 1024;

/// Answers of `validate-config`, by module digest and config. Shared by the threads of a cycle.
#[derive(Debug, Default)]
pub struct WantsCache {
    known: Mutex<Answers>,
    forms: Mutex<Forms>,
}

/// What queries ask for, however they are written: parsed once, not in each cycle.
#[derive(Debug, Default)]
struct Forms {
    by: HashMap<String, String>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Answers {
    /// By module digest, then by the hash of the config: a config may be large, and those that are no more stay for a
    /// while.
    by: HashMap<String, HashMap<[u8; 32], Known>>,
    count: usize,
    bytes: usize,
}

type Answer = Result<Arc<[SignalWant]>, CallFailure>;

#[derive(Debug)]
struct Known {
    wants: Answer,
    asked: Time,
    used: Time,
}

/// The scaling policy of a job that is to be asked; `None` where the size is set by hand.
pub fn asked(job: &JobSpec) -> Option<&ScalingSpec> {
    job.scaling.as_ref().filter(|s| s.mode != Mode::Off)
}

impl WantsCache {
    /// What the job's policy wants; nothing where none is to be asked.
    ///
    /// # Errors
    /// The module is not served, refuses the config, or failed; the size is held then.
    pub fn of(&self, job: &JobSpec, policies: &Snapshot, now: Time) -> Result<Arc<[SignalWant]>, CallFailure> {
        let Some(scaling) = asked(job) else { return Ok(Arc::default()) };
        let policy = policies.scaling(&scaling.module)?;
        let digest = &policy.id().digest;
        let config: [u8; 32] = Sha256::digest(scaling.config.as_bytes()).into();
        let known = self.lock().by.get_mut(digest).and_then(|c| c.get_mut(&config)).and_then(|k| k.at(now));
        if let Some(known) = known {
            return known;
        }
        // Not under the lock: a slow module must not hold up the others.
        let wants: Answer = policy.wants(&scaling.config).map(|a| a.value.into());
        self.lock().keep(digest, config, Known { wants: wants.clone(), asked: now, used: now }, (MANY, BYTES));
        wants
    }

    /// The signals to gather for these jobs, each with the namespaces it is wanted in.
    pub fn collect<'a>(&self, jobs: impl IntoIterator<Item = &'a JobSpec>, policies: &Snapshot, now: Time) -> Wants {
        let mut wants = Wants::new();
        for job in jobs {
            // Where the policy can't say what it wants, the job's own metrics are gathered all the same: the built-in
            // policy may have to decide by them.
            let own = self.of(job, policies, now).unwrap_or_default();
            for id in signal_ids(job, &own) {
                wants.entry(id).or_default().insert(job.key.namespace.clone());
            }
        }
        wants
    }

    /// Which custom queries these jobs take the answers of for their own. They must be all jobs of the namespaces that
    /// [`questioned`] names: one that is not due would be forgotten, and its value given to another.
    pub fn claims<'a>(&self, jobs: impl IntoIterator<Item = &'a JobSpec>, policies: &Snapshot, now: Time) -> Claims {
        let mut claims = Claims::default();
        for job in jobs {
            let own = self.of(job, policies, now).unwrap_or_default();
            for query in claimed(job, &own) {
                let form = self.form(&query);
                claims.add(&job.key, query, form);
            }
        }
        claims
    }

    fn form(&self, query: &str) -> String {
        self.forms.lock().unwrap_or_else(PoisonError::into_inner).of(query, FORM_BYTES)
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespaces whose jobs ask for custom queries. Elsewhere no answer can be taken for that of another job.
pub fn questioned(wants: &Wants) -> BTreeSet<&str> {
    let custom = wants.iter().filter(|(id, _)| id.query.is_some());
    custom.flat_map(|(_, namespaces)| namespaces).map(String::as_str).collect()
}

impl Forms {
    /// What is no PromQL has no answer either: it is its own form, as is what is too long to be asked.
    fn of(&mut self, query: &str, most: usize) -> String {
        if query.len() > promql::MAX_QUERY_BYTES {
            return query.to_owned();
        }
        if let Some(form) = self.by.get(query) {
            return form.clone();
        }
        let form = promql::normal_form(query).unwrap_or_else(|| query.to_owned());
        let bytes = query.len() + form.len() + 2 * size_of::<String>();
        if self.bytes + bytes > most {
            *self = Forms::default();
        }
        self.bytes += bytes;
        self.by.insert(query.to_owned(), form.clone());
        form
    }
}

impl Known {
    /// The answer, unless it is a failure that is due to be tried again.
    fn at(&mut self, now: Time) -> Option<Result<Arc<[SignalWant]>, CallFailure>> {
        if self.wants.is_err() && now.since(self.asked) >= RETRY {
            return None;
        }
        self.used = now;
        Some(self.wants.clone())
    }
}

impl Answers {
    fn keep(&mut self, digest: &str, config: [u8; 32], fresh: Known, (many, bytes): (usize, usize)) {
        let now = fresh.used;
        self.bytes += size(&fresh.wants);
        match self.by.entry(digest.to_owned()).or_default().insert(config, fresh) {
            Some(old) => self.bytes = self.bytes.saturating_sub(size(&old.wants)),
            None => self.count += 1,
        }
        if self.count > many || self.bytes > bytes {
            self.retain(|k| now.since(k.used) < Duration::from_secs(600));
        }
        // All of it is in use: it is asked for again, rather than grow without end.
        if self.count > many || self.bytes > bytes {
            self.retain(|_| false);
        }
    }

    fn retain(&mut self, keep: impl Fn(&Known) -> bool) {
        self.by.retain(|_, configs| {
            configs.retain(|_, k| keep(k));
            !configs.is_empty()
        });
        let left = self.by.values().flat_map(HashMap::values);
        (self.count, self.bytes) = left.fold((0, 0), |(n, bytes), k| (n + 1, bytes + size(&k.wants)));
    }
}

/// Bytes of an answer, about.
fn size(answer: &Answer) -> usize {
    let heap = match answer {
        Ok(wants) => wants
            .iter()
            .map(|w| {
                let text = w.name.len() + w.query.as_ref().map_or(0, String::len);
                size_of::<SignalWant>() + text
            })
            .sum(),
        Err(failure) => failure.message.len(),
    };
    size_of::<Known>() + 32 + heap
}

#[cfg(test)]
mod tests {
    use eto_engine::policy::FailureKind;

    use super::*;

    fn known(text: usize, used: u64) -> Known {
        let failure = CallFailure { kind: FailureKind::InvalidConfig, message: "x".repeat(text) };
        Known { wants: Err(failure), asked: Time(used), used: Time(used) }
    }

    #[test]
    fn answers_take_no_more_than_their_bytes_and_number() {
        let mut all = Answers::default();
        let mut config = [0_u8; 32];
        for i in 0..200_u8 {
            config[0] = i;
            all.keep("d", config, known(1000, u64::from(i) * 60_000), (1000, 50_000));
            assert!(all.bytes <= 50_000 && all.count <= 50, "{} bytes of {}", all.bytes, all.count);
            assert_eq!(all.count, all.by.values().map(HashMap::len).sum::<usize>());
        }
        assert!(all.by.get("d").is_some_and(|c| c.contains_key(&config)), "what is in use stays");
        // All in use and too many: begun anew.
        let mut all = Answers::default();
        for i in 0..200_u8 {
            config[0] = i;
            all.keep("d", config, known(0, 1000), (64, usize::MAX));
            assert!(all.count <= 64);
        }
    }

    #[test]
    fn forms_take_no_more_than_their_bytes() {
        let mut forms = Forms::default();
        for i in 0..200 {
            assert_eq!(forms.of(&format!("sum( q{i} )"), 1000), format!("sum (q{i})"));
            assert!(forms.bytes <= 1000 && !forms.by.is_empty(), "{} bytes", forms.bytes);
        }
        let (none, long) = ("sum(q", "x".repeat(promql::MAX_QUERY_BYTES + 1));
        assert_eq!((forms.of(none, 1000), forms.of(&long, 1000)), (none.to_owned(), long));
    }

    #[test]
    fn an_answer_that_takes_the_place_of_another_is_counted_once() {
        let mut all = Answers::default();
        for text in [10, 1000, 20] {
            all.keep("d", [0; 32], known(text, 0), (10, 10_000));
        }
        assert_eq!((all.count, all.bytes), (1, size(&known(20, 0).wants)));
    }
}
