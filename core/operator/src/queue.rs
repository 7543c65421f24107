//! A queue of jobs to look at: each job at most once at a time, repeats merged, later looks kept with their moment.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eto_engine::job::JobKey;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::telemetry::Telemetry;

/// Cheap to clone; all clones are one queue.
#[derive(Clone, Debug)]
pub struct Queue {
    name: &'static str,
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    ready: VecDeque<JobKey>,
    /// In `ready`.
    waiting: HashSet<JobKey>,
    running: HashSet<JobKey>,
    /// Asked for while running: ready again as soon as that has ended.
    again: HashSet<JobKey>,
    later: BTreeSet<(Instant, JobKey)>,
    due: HashMap<JobKey, Instant>,
}

impl Inner {
    fn add(&mut self, key: JobKey) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// A look that is asked for later than one that is planned already is covered by that one.
    fn add_at(&mut self, key: JobKey, at: Instant) {
        match self.due.get(&key) {
            Some(planned) if *planned <= at => {}
            planned => {
                if let Some(planned) = planned {
                    self.later.remove(&(*planned, key.clone()));
                }
                self.due.insert(key.clone(), at);
                self.later.insert((at, key));
            }
        }
    }

    /// The next key, or the moment to try again.
    fn take(&mut self, now: Instant) -> Result<JobKey, Option<Instant>> {
        while let Some((at, key)) = self.later.first().cloned() {
            if at > now {
                break;
            }
            self.later.pop_first();
            self.due.remove(&key);
            self.add(key);
        }
        let Some(key) = self.ready.pop_front() else {
            return Err(self.later.first().map(|(at, _)| *at));
        };
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        Ok(key)
    }

    fn done(&mut self, key: &JobKey) {
        self.running.remove(key);
        if self.again.remove(key) {
            self.add(key.clone());
        }
    }
}

impl Queue {
    pub fn new(name: &'static str) -> Self {
        Queue { name, inner: Arc::default(), changed: Arc::default() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn add(&self, key: JobKey) {
        self.with(|q| q.add(key));
        self.changed.notify_one();
    }

    pub fn add_after(&self, key: JobKey, delay: Duration) {
        self.with(|q| q.add_at(key, Instant::now() + delay));
        self.changed.notify_one();
    }

    /// Forgets everything that waits.
    pub fn clear(&self) {
        self.with(|q| {
            q.ready.clear();
            q.waiting.clear();
            q.again.clear();
            q.later.clear();
            q.due.clear();
        });
    }

    pub fn len(&self) -> usize {
        self.with(|q| q.ready.len() + q.running.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    async fn take(&self) -> JobKey {
        loop {
            let changed = self.changed.notified();
            match self.with(|q| q.take(Instant::now())) {
                Ok(key) => return key,
                Err(Some(at)) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                Err(None) => changed.await,
            }
        }
    }

    /// Works the queue until `stop` turns true, with at most `workers` jobs at a time and one worker per job; ends
    /// when the work in hand has ended.
    pub async fn work<F>(
        &self,
        workers: usize,
        telemetry: Telemetry,
        mut stop: watch::Receiver<bool>,
        work: impl Fn(JobKey) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(workers));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let key = tokio::select! {
                key = self.take() => key,
                _ = stop.wait_for(|s| *s) => break,
            };
            telemetry.queued(self.name, self.len());
            let (queue, task) = (self.clone(), work(key.clone()));
            tokio::spawn(async move {
                let done = Done { queue, key };
                task.await;
                drop(done);
                drop(permit);
            });
        }
        // All permits back means all work has ended.
        let all = u32::try_from(workers).unwrap_or(u32::MAX);
        let _ = permits.acquire_many(all).await;
    }
}

/// Gives the key back even if the work panics: one job's fault must not keep that job from being looked at again.
struct Done {
    queue: Queue,
    key: JobKey,
}

impl Drop for Done {
    fn drop(&mut self) {
        self.queue.with(|q| q.done(&self.key));
        self.queue.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(name: &str) -> JobKey {
        JobKey { namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn repeats_merge_and_one_asked_for_while_running_comes_again() {
        let mut q = Inner::default();
        let now = Instant::now();
        q.add(key("a"));
        q.add(key("a"));
        assert_eq!(q.take(now), Ok(key("a")));
        assert_eq!(q.take(now), Err(None));
        q.add(key("a"));
        assert_eq!(q.take(now), Err(None), "it is being worked on");
        q.done(&key("a"));
        assert_eq!(q.take(now), Ok(key("a")));
        q.done(&key("a"));
        assert_eq!(q.take(now), Err(None));
    }

    #[test]
    fn the_earliest_of_later_looks_holds() {
        let mut q = Inner::default();
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        q.add_at(key("a"), at(10));
        q.add_at(key("a"), at(5));
        q.add_at(key("a"), at(7));
        assert_eq!(q.take(now), Err(Some(at(5))));
        assert_eq!(q.take(at(5)), Ok(key("a")));
        q.done(&key("a"));
        assert_eq!(q.take(at(20)), Err(None));
    }

    #[tokio::test]
    async fn work_runs_each_key_alone_and_ends_with_what_it_began() {
        let queue = Queue::new("test");
        let (stop, stopped) = watch::channel(false);
        let (busy, most, runs) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (b, m, r, again) = (busy.clone(), most.clone(), runs.clone(), queue.clone());
        let worker = {
            let queue = queue.clone();
            tokio::spawn(async move {
                queue
                    .work(4, Telemetry::default(), stopped, move |key| {
                        let (b, m, r, again) = (b.clone(), m.clone(), r.clone(), again.clone());
                        async move {
                            m.fetch_max(b.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            again.add(key);
                            tokio::task::yield_now().await;
                            b.fetch_sub(1, Ordering::SeqCst);
                            r.add_permits(1);
                        }
                    })
                    .await;
            })
        };
        queue.add(key("only"));
        let _ = runs.acquire_many(5).await.unwrap();
        stop.send_replace(true);
        worker.await.unwrap();
        assert_eq!(most.load(Ordering::SeqCst), 1, "one key is worked on by one worker");
        assert_eq!(busy.load(Ordering::SeqCst), 0);
    }
}
