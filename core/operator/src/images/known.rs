//! What was read, for how long it holds, and when what failed is tried again. Bounded; takes the time, and reads
//! nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_cycle::image::{ImageConfig, ImageQuestion};
use eto_engine::job::JobKey;
use eto_engine::plan::IMAGE_PATIENCE;

/// A tag may come to mean another image; what a digest means stays.
const TAG_HOLDS: Duration = Duration::from_secs(300);
const DIGEST_HOLDS: Duration = Duration::from_secs(86_400);
/// The first wait after a failure; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(15);
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Questions that are remembered; those used longest ago go first.
const MOST: usize = 4096;

/// What was asked, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: HashMap<ImageQuestion, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The command, and when it was read.
    config: Option<(Arc<ImageConfig>, Instant)>,
    /// Since when it is being read.
    reading: Option<Instant>,
    failure: Option<Failure>,
    /// Who waits for it.
    waiting: HashSet<JobKey>,
    used: Instant,
}

#[derive(Debug)]
struct Failure {
    why: Arc<str>,
    /// In a row.
    times: u32,
    /// Not to be tried again before.
    until: Instant,
}

/// How it stands with the command of a job's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Known,
    /// To be had by asking; why it was not had the last time.
    Pending {
        last: Option<Arc<str>>,
    },
    /// Not to be had before then.
    Failed {
        why: Arc<str>,
        until: Instant,
    },
}

impl Entry {
    fn new(now: Instant) -> Self {
        Entry { config: None, reading: None, failure: None, waiting: HashSet::new(), used: now }
    }

    fn state(&self, question: &ImageQuestion, now: Instant) -> State {
        let holds = if question.image.contains('@') { DIGEST_HOLDS } else { TAG_HOLDS };
        let config = self.config.as_ref();
        if config.is_some_and(|(_, at)| now.duration_since(*at) < holds) {
            return State::Known;
        }
        let (why, until) = match (&self.failure, self.reading) {
            (_, Some(since)) if now.duration_since(since) >= IMAGE_PATIENCE => {
                let why = format!("its registry did not answer within {} s", IMAGE_PATIENCE.as_secs());
                (why.into(), now + FIRST_WAIT)
            }
            (Some(failure), None) if now < failure.until => (Arc::clone(&failure.why), failure.until),
            (failure, _) => return State::Pending { last: failure.as_ref().map(|f| Arc::clone(&f.why)) },
        };
        // What was read before is better than nothing.
        if config.is_some() { State::Known } else { State::Failed { why, until } }
    }
}

impl Known {
    /// How it stands with all of them together: the worst counts.
    pub(super) fn all(&self, questions: &[ImageQuestion], now: Instant) -> State {
        let states = questions.iter().map(|q| match self.entries.get(q) {
            Some(entry) => entry.state(q, now),
            None => State::Pending { last: None },
        });
        let worse = |state: &State| match state {
            State::Known => 0,
            State::Pending { .. } => 1,
            State::Failed { .. } => 2,
        };
        states.max_by_key(worse).unwrap_or(State::Known)
    }

    /// A job asks. True if it is to be read now; false if it is known, being read, or not to be tried yet.
    pub(super) fn begin(&mut self, question: &ImageQuestion, job: &JobKey, now: Instant) -> bool {
        if !self.entries.contains_key(question) {
            self.make_room();
        }
        let entry = self.entries.entry(question.clone()).or_insert_with(|| Entry::new(now));
        entry.used = now;
        if !matches!(entry.state(question, now), State::Pending { .. }) {
            return false;
        }
        entry.waiting.insert(job.clone());
        let begins = entry.reading.is_none();
        entry.reading.get_or_insert(now);
        begins
    }

    /// It was read, or not. Gives those who waited.
    pub(super) fn end(
        &mut self,
        question: &ImageQuestion,
        outcome: Result<ImageConfig, String>,
        now: Instant,
    ) -> Vec<JobKey> {
        let entry = self.entries.entry(question.clone()).or_insert_with(|| Entry::new(now));
        entry.reading = None;
        match outcome {
            Ok(config) => (entry.config, entry.failure) = (Some((Arc::new(config), now)), None),
            Err(why) => {
                let times = entry.failure.as_ref().map_or(0, |f| f.times).saturating_add(1);
                let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow((times - 1).min(16))).min(LONGEST_WAIT);
                entry.failure = Some(Failure { why: why.into(), times, until: now + wait });
            }
        }
        entry.waiting.drain().collect()
    }

    pub(super) fn config(&self, question: &ImageQuestion) -> Option<Arc<ImageConfig>> {
        self.entries.get(question)?.config.as_ref().map(|(config, _)| Arc::clone(config))
    }

    /// Forgets an eighth at a time, so that the search for what is old is rare.
    fn make_room(&mut self) {
        if self.entries.len() < MOST {
            return;
        }
        let idle = self.entries.iter().filter(|(_, e)| e.reading.is_none());
        let mut idle: Vec<(Instant, ImageQuestion)> = idle.map(|(q, e)| (e.used, q.clone())).collect();
        idle.sort_by_key(|(used, _)| *used);
        idle.into_iter().take(MOST / 8).for_each(|(_, question)| drop(self.entries.remove(&question)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn question(image: &str) -> ImageQuestion {
        ImageQuestion {
            namespace: "team".into(),
            image: image.into(),
            architecture: None,
            pull_secrets: vec![],
            service_account: "default".into(),
        }
    }

    fn job(name: &str) -> JobKey {
        JobKey { namespace: "team".into(), name: name.into() }
    }

    fn config() -> ImageConfig {
        ImageConfig::parse(br#"{"config": {"Cmd": ["train"]}}"#).unwrap()
    }

    fn of(known: &Known, image: &ImageQuestion, now: Instant) -> State {
        known.all(std::slice::from_ref(image), now)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_command_is_read_once_for_all_who_ask() {
        let (mut known, now, image) = (Known::default(), Instant::now(), question("train:1"));
        let all = [image.clone()];
        assert_eq!(known.all(&all, now), State::Pending { last: None });
        assert!(known.begin(&image, &job("a"), now));
        assert!(!known.begin(&image, &job("b"), now), "it is being read");
        assert!(!known.begin(&image, &job("a"), now));
        let mut waiting = known.end(&image, Ok(config()), now);
        waiting.sort();
        assert_eq!(waiting, [job("a"), job("b")]);
        assert_eq!(known.all(&all, now), State::Known);
        assert!(!known.begin(&image, &job("c"), now));
        assert_eq!(known.config(&image).as_deref(), Some(&config()));
        let other = ImageQuestion { namespace: "others".into(), ..image };
        assert_eq!(of(&known, &other, now), State::Pending { last: None }, "who may pull is another matter there");
        assert_eq!(known.config(&other), None);
    }

    #[test]
    fn a_tag_is_asked_for_again_and_a_digest_is_not() {
        let (mut known, now) = (Known::default(), Instant::now());
        let digest = format!("train@sha256:{}", "0".repeat(64));
        for (image, later) in [("train:1", State::Pending { last: None }), (digest.as_str(), State::Known)] {
            known.begin(&question(image), &job("a"), now);
            known.end(&question(image), Ok(config()), now);
            assert_eq!(known.all(&[question(image)], now + TAG_HOLDS), later, "{image}");
            assert!(known.config(&question(image)).is_some(), "pods that are being made go on with it");
        }
        // Where it can't be read again, what it was holds on.
        let (image, now) = (question("train:1"), now + TAG_HOLDS);
        assert!(known.begin(&image, &job("a"), now));
        known.end(&image, Err("away".into()), now);
        assert_eq!(known.all(&[image], now), State::Known);
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let (mut known, mut now, image) = (Known::default(), Instant::now(), question("train:1"));
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(known.begin(&image, &job("a"), now));
            assert_eq!(known.end(&image, Err("no route".into()), now), [job("a")]);
            let State::Failed { why, until } = of(&known, &image, now) else { panic!("it failed") };
            assert_eq!(&*why, "no route");
            assert!(!known.begin(&image, &job("b"), now), "not yet");
            waits.push((until - now).as_secs());
            now = until;
            assert_eq!(of(&known, &image, now), State::Pending { last: Some("no route".into()) });
        }
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_job_does_not_wait_longer_than_its_patience() {
        let (mut known, now, image) = (Known::default(), Instant::now(), question("train:1"));
        known.begin(&image, &job("a"), now);
        assert!(matches!(of(&known, &image, now + IMAGE_PATIENCE.saturating_sub(SECOND)), State::Pending { .. }));
        assert!(matches!(of(&known, &image, now + IMAGE_PATIENCE), State::Failed { .. }));
        known.end(&image, Ok(config()), now + IMAGE_PATIENCE + SECOND);
        assert_eq!(known.all(&[image], now + IMAGE_PATIENCE + SECOND), State::Known);
    }

    #[test]
    fn of_two_images_the_worse_counts() {
        let (mut known, now) = (Known::default(), Instant::now());
        let [good, bad, fresh] = ["good:1", "bad:1", "fresh:1"].map(question);
        known.end(&good, Ok(config()), now);
        known.end(&bad, Err("no".into()), now);
        assert_eq!(known.all(&[good.clone(), good.clone()], now), State::Known);
        assert!(matches!(known.all(&[good.clone(), fresh.clone()], now), State::Pending { .. }));
        for order in [[fresh.clone(), bad.clone()], [bad, fresh]] {
            assert!(matches!(known.all(&order, now), State::Failed { .. }));
        }
    }

    #[test]
    fn memory_has_an_end() {
        let (mut known, now) = (Known::default(), Instant::now());
        for n in 0..(MOST as u64 + 100) {
            let image = question(&format!("train:{n}"));
            known.begin(&image, &job("a"), now + Duration::from_millis(n));
            known.end(&image, Ok(config()), now + Duration::from_millis(n));
        }
        assert!(known.entries.len() <= MOST, "{}", known.entries.len());
        assert!(known.config(&question("train:0")).is_none());
        assert!(known.config(&question(&format!("train:{}", MOST + 99))).is_some());
    }
}
