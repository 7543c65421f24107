//! Prometheus as a source of signals.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eto_engine::signals::{SignalData, SignalId, SignalSet};
use eto_engine::time::Time;
use futures::future::{join_all, try_join};

use crate::answer::shorten;
use crate::client::{Http, Session};
use crate::collect::{Bodies, fold};
use crate::error::{QueryError, SettingsError, SourceError};
use crate::plan::{Request, Shape, apart, averaged_s, plan};
use crate::promql::Custom;
use crate::settings::PrometheusSettings;

/// The signals wanted, each with the namespaces of the jobs that want it.
pub type Wants = HashMap<SignalId, BTreeSet<String>>;

/// A Prometheus (or Thanos, Mimir: whatever serves its query API) to gather signals from.
pub struct Prometheus {
    pub(crate) settings: Arc<PrometheusSettings>,
    pub(crate) http: Http,
    kept: Mutex<Kept>,
}

/// How long a signal is remembered that nobody asks for. One gathering may be about some of the jobs only, so that a signal
/// comes up once in several gatherings.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What is remembered from one gathering to the next.
#[derive(Default)]
struct Kept {
    /// Since when the source as a whole has answered.
    source: Option<Time>,
    signals: HashMap<SignalId, Health>,
    /// Checked custom queries by their text, with when they were wanted last.
    queries: HashMap<String, (Time, Result<Arc<Custom>, QueryError>)>,
}

struct Health {
    wanted: Time,
    /// Since when there have been answers; `None` after one without.
    since: Option<Time>,
    /// Some of it did not answer in time when it was last asked for.
    late: bool,
    /// When the namespaces' shared request was last of no use, so that each is asked for by itself.
    apart: Option<Time>,
}

/// For how long namespaces are asked for one by one after the request that they share was of no use.
const APART: Duration = Duration::from_secs(600);

/// A signal's answer.
struct Fetched {
    data: SignalData,
    /// Prometheus (or what it asks in turn) said that parts are missing.
    partial: bool,
    /// Some namespaces did not answer in time.
    late: bool,
    /// The request that all namespaces share was tried, and of no use.
    apart: bool,
}

impl fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prometheus").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Prometheus {
    /// Checks the settings. Touches neither files nor the network: what is wrong there shows in each gathering, and mends
    /// itself.
    pub fn new(settings: PrometheusSettings) -> Result<Self, SettingsError> {
        let settings = Arc::new(settings);
        let http = Http::new(Arc::clone(&settings))?;
        Ok(Prometheus { settings, http, kept: Mutex::default() })
    }

    /// Asks for all wanted signals at once and waits until all have answered, or `deadline` of the settings has passed.
    ///
    /// Never fails as a whole: a signal without an answer says why in its `trouble`, and its `healthy_since` is `None`. That
    /// is `None` too while the source says that parts of its data are missing.
    /// After an outage `healthy_since` is the `now` of the first gathering that got an answer again. A signal wanted for
    /// the first time counts as healthy for as long as the source as a whole has been.
    pub async fn gather(&self, wants: &Wants, now: Time) -> SignalSet {
        let mut plans: Vec<_> =
            wants.iter().map(|(id, namespaces)| (id, namespaces, self.plan(id, namespaces, now))).collect();
        // Whoever comes first gets the connections: what all jobs need before what one team asks for many times, and both
        // before what kept a connection until it was too late.
        let late = self.late();
        plans.sort_by_key(|(id, _, plan)| {
            (id.query.is_some() && late.contains(*id), id.query.is_some(), plan.as_ref().map_or(0, Vec::len))
        });
        let session = self.http.session().await;
        let answers = join_all(plans.into_iter().map(|(id, namespaces, plan)| {
            let session = session.as_ref();
            async move {
                let outcome = match (plan, session) {
                    (Err(error), _) => Err(error),
                    (Ok(_), Err(error)) => Err(error.clone()),
                    (Ok(requests), Ok(session)) => self.answer(session, id, requests, namespaces, now).await,
                };
                (id, outcome)
            }
        }))
        .await;
        self.conclude(answers, now)
    }

    fn plan(&self, id: &SignalId, namespaces: &BTreeSet<String>, now: Time) -> Result<Vec<Request>, SourceError> {
        let custom = id.query.as_deref().map(|query| self.custom(query, now)).transpose()?;
        plan(&self.settings, id, custom.as_ref(), namespaces)
            .ok_or_else(|| SourceError::UnknownSignal { name: shorten(&id.name) })
    }

    /// Signals of which something was late when they were last asked for.
    fn late(&self) -> HashSet<SignalId> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.signals.iter().filter(|(_, health)| health.late).map(|(id, _)| id.clone()).collect()
    }

    /// Whether the namespaces of a custom query are to be asked for one by one.
    fn is_apart(&self, id: &SignalId, now: Time) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.signals.get(id).and_then(|health| health.apart).is_some_and(|at| now.since(at) < APART)
    }

    fn custom(&self, query: &str, now: Time) -> Result<Arc<Custom>, QueryError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let label = &self.settings.namespace_label;
        let checked = || (now, Custom::new(query, label).map(Arc::new));
        let (wanted, custom) = kept.queries.entry(query.to_owned()).or_insert_with(checked);
        *wanted = now;
        custom.clone()
    }

    /// Fetches a signal. What many namespaces share in one request must not fail for all because of the series of one:
    /// where it may be that, each is asked for by itself, and again so for a while.
    async fn answer(
        &self,
        session: &Session,
        id: &SignalId,
        requests: Vec<Request>,
        namespaces: &BTreeSet<String>,
        now: Time,
    ) -> Result<Fetched, SourceError> {
        let is_shared = matches!(requests.as_slice(), [Request { shape: Shape::Custom { only: None }, .. }]);
        let Some(query) = id.query.as_deref().filter(|_| is_shared) else {
            return self.fetch(session, requests, namespaces, now).await;
        };
        let shared = !self.is_apart(id, now);
        if shared {
            // The time for a second try is better spent on asking apart.
            let outcome = self.fetch(&session.impatient(), requests, namespaces, now).await;
            match outcome {
                Err(error) if error.is_of_the_data() || error.is_late() => {}
                outcome => return outcome,
            }
        }
        let custom = self.custom(query, now)?;
        let fetched = self.fetch(session, apart(&self.settings, &custom, namespaces), namespaces, now).await?;
        Ok(Fetched { apart: shared, ..fetched })
    }

    async fn fetch(
        &self,
        session: &Session,
        requests: Vec<Request>,
        namespaces: &BTreeSet<String>,
        now: Time,
    ) -> Result<Fetched, SourceError> {
        let (mut partial, mut late) = (false, false);
        let mut data = SignalData::default();
        let bodies = join_all(requests.into_iter().map(|request| self.bodies(session, request))).await;
        let (mut answered, mut last) = (bodies.is_empty(), None);
        for outcome in bodies {
            let (only, outcome) = outcome;
            let label = self.settings.namespace_label.clone();
            let wanted = namespaces.clone();
            let folded = match outcome {
                // Reading megabytes takes tens of milliseconds, which no other task should wait for.
                Ok(bodies) => tokio::task::spawn_blocking(move || {
                    let mut part = SignalData::default();
                    fold(&mut part, &bodies, &wanted, &label, now).map(|partial| (part, partial))
                })
                .await
                .unwrap_or_else(|e| Err(SourceError::Shape { why: format!("reading it failed: {e}") })),
                Err(error) => Err(error),
            };
            match (folded, only) {
                (Ok((part, incomplete)), _) => {
                    answered = true;
                    partial |= incomplete;
                    merge(&mut data, part);
                }
                (Err(error), Some(namespace)) => {
                    late |= error.is_late();
                    data.namespace_trouble.insert(namespace, error.to_string());
                    last = Some(error);
                }
                (Err(error), None) => last = Some(error),
            }
        }
        match last {
            // Others were answered in time: a source that is slow as a whole would not have done that.
            Some(error) if !answered || (error.is_outage() && !error.is_late()) => Err(error),
            _ => Ok(Fetched { data, partial, late, apart: false }),
        }
    }

    /// Sends one request's queries; with the namespace it is for, if it is for one.
    async fn bodies(&self, session: &Session, request: Request) -> (Option<String>, Result<Bodies, SourceError>) {
        let only = match &request.shape {
            Shape::Custom { only } => only.clone(),
            _ => None,
        };
        let times = async {
            match &request.times {
                Some(times) => self.http.query(session, times).await.map(Some),
                None => Ok(None),
            }
        };
        let outcome = try_join(self.http.query(session, &request.values), times).await;
        (only, outcome.map(|(values, times)| Bodies { shape: request.shape, values, times }))
    }

    /// Puts the answers together and keeps the books on outages.
    fn conclude(&self, answers: Vec<(&SignalId, Result<Fetched, SourceError>)>, now: Time) -> SignalSet {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = answers.iter().any(|(_, outcome)| outcome.is_ok());
        // One query that takes too long beside others that are answered is that query's trouble.
        let is_outage = |error: &SourceError| error.is_outage() && !(answered && error.is_late());
        if answers.iter().any(|(_, outcome)| matches!(outcome, Err(error) if is_outage(error))) {
            kept.source = None;
        } else if answered {
            kept.source.get_or_insert(now);
        }
        let source = kept.source;
        let mut set = SignalSet { at: now, ..SignalSet::default() };
        for (id, outcome) in answers {
            let known = kept.signals.contains_key(id);
            let fresh = Health { wanted: now, since: source, late: false, apart: None };
            let health = kept.signals.entry(id.clone()).or_insert(fresh);
            health.wanted = now;
            match &outcome {
                Ok(fetched) => {
                    health.late = fetched.late;
                    health.apart = if fetched.apart { Some(now) } else { health.apart };
                }
                Err(error) => health.late = error.is_late(),
            }
            let data = match outcome {
                // What is shown may be too small: no better than an outage for a shrink, good enough for all else.
                Ok(Fetched { data, partial: true, .. }) => {
                    health.since = None;
                    SignalData { healthy_since: None, ..data }
                }
                Ok(Fetched { data, .. }) => {
                    SignalData { healthy_since: Some(*health.since.get_or_insert(now)), ..data }
                }
                Err(error) => {
                    // Said once for an outage, not once a second.
                    if health.since.take().is_some() || !known {
                        tracing::warn!(signal = %id.name, %error, "a signal has no answer");
                    }
                    SignalData { trouble: Some(error.to_string()), ..SignalData::default() }
                }
            };
            let averaged_s = Some(averaged_s(&self.settings, id));
            set.signals.insert(id.clone(), SignalData { averaged_s, ..data });
        }
        let recent = |wanted: Time| now.since(wanted) < REMEMBERED;
        kept.signals.retain(|_, health| recent(health.wanted));
        kept.queries.retain(|_, (wanted, _)| recent(*wanted));
        set
    }
}

fn merge(data: &mut SignalData, part: SignalData) {
    if data.per_pod.is_empty() {
        data.per_pod = part.per_pod;
    } else {
        data.per_pod.extend(part.per_pod);
    }
    data.per_namespace.extend(part.per_namespace);
    data.per_key.extend(part.per_key);
    data.namespace_trouble.extend(part.namespace_trouble);
    data.trouble = data.trouble.take().or(part.trouble);
}
