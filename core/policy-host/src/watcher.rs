//! Keeps a registry in step with directories of modules.
//!
//! The file system's events only say *when* to look; what is there is always found by listing the directories anew. So
//! it does not matter in which order an editor renames, or that a ConfigMap volume swaps a link (`..data`) and not the
//! file. A slow look now and then finds what brought no event (a link's target, a network file system).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: reads files and the clock")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::check;
use crate::error::{HostError, LoadError};
use crate::host::{PolicyHost, digest, suggest};
use crate::policy::Policy;
use crate::registry::{Change, LoadFailure, Registry};
use crate::scan::{self, Found, Listing};

/// A file counts once it has stayed as it is for this long.
const SETTLE: Duration = Duration::from_millis(30);
/// A file that looks cut off is taken for half-written for this long, then for broken; one that is gone is taken for
/// being replaced (some editors and copies remove first), then for removed.
const GRACE: Duration = Duration::from_secs(1);
/// How often to look while something is unsettled or half-written.
const AGAIN: Duration = Duration::from_millis(50);
/// How often to look without an event.
const RESCAN: Duration = Duration::from_secs(5);

enum Wake {
    Look,
    Stop,
}

/// Watches directories until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    wake: SyncSender<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Loads every module in `dirs` into `registry`, then watches on its own thread. Of modules with the same name the
    /// one in the later directory counts: give the built-in ones first. A directory need not exist yet.
    ///
    /// A module that can't be served is recorded in the snapshot's failures and disturbs nothing: its last good
    /// version goes on serving, or else the module of that name in an earlier directory.
    ///
    /// # Errors
    /// Only if the thread can't be started.
    pub fn start(host: Arc<PolicyHost>, registry: &Arc<Registry>, dirs: Vec<PathBuf>) -> Result<Self, HostError> {
        let (wake, woken) = sync_channel(1);
        let events = wake.clone();
        let listener = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Looking opens files and directories itself, which must not make us look again.
            if !event.is_ok_and(|event| is_mere_reading(event.kind)) {
                // One look that is still to come covers all events before it.
                drop(events.try_send(Wake::Look));
            }
        });
        let listener = match listener {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::warn!(%error, "no file events on this machine: policy directories are looked at every 5 s");
                None
            }
        };
        let mut directory = Directories { host, dirs, listener, watched: BTreeMap::new(), known: BTreeMap::new() };
        directory.watch();
        let (changes, _) = directory.look(Instant::now(), true);
        registry.publish(changes);
        let registry = Arc::downgrade(registry);
        let thread = thread::Builder::new()
            .name("policy-watcher".to_owned())
            .spawn(move || run(&mut directory, &registry, &woken))
            .map_err(HostError::Thread)?;
        Ok(Self { wake, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Blocks for no longer than one look takes.
        let _ = self.wake.send(Wake::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_mere_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

fn run(directories: &mut Directories, registry: &Weak<Registry>, woken: &Receiver<Wake>) {
    let mut wait = RESCAN;
    loop {
        match woken.recv_timeout(wait) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(Wake::Look) | Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(registry) = registry.upgrade() else { return };
        directories.watch();
        let (changes, pending) = directories.look(Instant::now(), false);
        registry.publish(changes);
        wait = if pending { AGAIN } else { RESCAN };
    }
}

/// What was last made of a name.
struct Known {
    /// The candidates that it was made of.
    from: Vec<Found>,
    /// Since when they look like this.
    since: Instant,
    /// Whether they were tried.
    tried: bool,
    /// Whether something of this name is served.
    serves: bool,
    /// Since when there is no candidate at all.
    gone: Option<Instant>,
    /// Whether the candidate that counted is gone, and another one would take its place.
    lost_first: bool,
}

struct Directories {
    host: Arc<PolicyHost>,
    dirs: Vec<PathBuf>,
    listener: Option<RecommendedWatcher>,
    /// Which directory each watch is on.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    known: BTreeMap<String, Known>,
}

impl Directories {
    /// Puts a watch on every directory that is there, again where it was replaced; on its parent where it is missing.
    fn watch(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        let missing = self.dirs.iter().filter(|dir| scan::identity(dir).is_none());
        let parents: Vec<PathBuf> =
            missing.filter_map(|dir| dir.parent()).map(|dir| Path::new(".").join(dir)).collect();
        self.watched.retain(|dir, _| {
            let wanted = self.dirs.contains(dir) || parents.contains(dir);
            if !wanted {
                let _ = listener.unwatch(dir);
            }
            wanted
        });
        for dir in self.dirs.iter().chain(&parents) {
            let now = scan::identity(dir);
            if self.watched.get(dir).copied() == now {
                continue;
            }
            if self.watched.remove(dir).is_some() {
                let _ = listener.unwatch(dir);
            }
            let Some(now) = now else { continue };
            match listener.watch(dir, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.watched.insert(dir.clone(), now)),
                Err(error) => tracing::debug!(dir = %dir.display(), %error, "policy directory not watched"),
            }
        }
    }

    /// Lists the directories and makes of each name what is to be published. The flag says whether to look again soon.
    /// At the start everything is taken as it is.
    fn look(&mut self, now: Instant, at_start: bool) -> (Vec<Change>, bool) {
        let listing = match scan::list(&self.dirs) {
            Ok(listing) => listing,
            Err((dir, error)) => {
                tracing::warn!(dir = %dir.display(), %error, "policy directory can't be read: what serves goes on serving");
                return (Vec::new(), false);
            }
        };
        let (mut changes, mut pending) = self.removals(&listing, now);
        for (name, candidates) in listing {
            let known = self.known.entry(name.clone()).or_insert_with(|| Known {
                from: Vec::new(),
                since: now,
                tried: false,
                serves: false,
                gone: None,
                lost_first: false,
            });
            known.gone = None;
            if known.from != candidates {
                let is_there = |first: &Found| candidates.iter().any(|candidate| candidate.path == first.path);
                known.lost_first = known.from.first().is_some_and(|first| !is_there(first));
                known.from = candidates;
                known.since = now;
                known.tried = false;
            }
            if known.tried {
                continue;
            }
            let age = now.duration_since(known.since);
            if !at_start && age < if known.lost_first { GRACE } else { SETTLE } {
                pending = true;
                continue;
            }
            match try_name(&self.host, &name, known, at_start || age >= GRACE) {
                Some(made) => {
                    known.tried = true;
                    changes.extend(made);
                }
                None => pending = true,
            }
        }
        (changes, pending)
    }

    /// The names that are gone for good; the flag says whether some may be on their way back.
    fn removals(&mut self, listing: &Listing, now: Instant) -> (Vec<Change>, bool) {
        let (mut changes, mut pending) = (Vec::new(), false);
        self.known.retain(|name, known| {
            if listing.contains_key(name) {
                return true;
            }
            let since = *known.gone.get_or_insert(now);
            if now.duration_since(since) < GRACE {
                pending = true;
                return true;
            }
            tracing::info!(policy = %name, "policy removed");
            changes.push(Change::Remove(name.clone()));
            false
        });
        (changes, pending)
    }
}

/// Makes of the candidates of a name what is to be published. `None`: one is still being written, look again.
fn try_name(host: &PolicyHost, name: &str, known: &mut Known, is_final: bool) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    for found in &known.from {
        let loaded = load(host, name, &found.path);
        if !scan::unchanged(found) {
            return None;
        }
        match loaded {
            Ok(policy) => {
                tracing::info!(policy = %name, version = %policy.id().version, digest = %policy.id().digest, "policy served");
                known.serves = true;
                // First serve, then refuse: serving forgets failures.
                changes.insert(0, Change::Serve(policy));
                return Some(changes);
            }
            Err(refused) if !is_final && refused.error.may_be_half_written() => return None,
            Err(refused) => {
                tracing::warn!(policy = %name, path = %found.path.display(), error = %refused.error, "policy refused");
                if changes.is_empty() {
                    changes.push(Change::Refuse(refused));
                }
                if known.serves {
                    // The last good version goes on; what lies in an earlier directory is not it.
                    return Some(changes);
                }
            }
        }
    }
    Some(changes)
}

fn load(host: &PolicyHost, name: &str, path: &Path) -> Result<Arc<Policy>, LoadFailure> {
    let refuse =
        |digest: String, error: LoadError| LoadFailure { name: name.to_owned(), digest, error, since_ms: now_ms() };
    if !check::is_name(name) {
        let error = LoadError::BadName { name: name.chars().take(80).collect(), suggestion: suggest(name) };
        return Err(refuse(String::new(), error));
    }
    let max = host.settings().max_module_bytes;
    let bytes = scan::read_module(path, max).map_err(|error| refuse(String::new(), error))?;
    let digest = digest(&bytes);
    host.load_beside(name, bytes, path).map_err(|error| refuse(digest, error))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::HostSettings;

    fn directories(dirs: Vec<PathBuf>) -> Directories {
        let host = PolicyHost::new(HostSettings::default()).unwrap();
        Directories { host, dirs, listener: None, watched: BTreeMap::new(), known: BTreeMap::new() }
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_is_being_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.wasm");
        std::fs::write(&path, "no module").unwrap();
        let mut all = directories(vec![dir.path().to_owned()]);
        let start = Instant::now();
        assert!(matches!(all.look(start, true).0.as_slice(), [Change::Refuse(_)]));
        std::fs::remove_file(&path).unwrap();
        let (changes, pending) = all.look(start, false);
        assert!(changes.is_empty() && pending, "{changes:?}");
        // It comes back, and its absence is forgotten.
        std::fs::write(&path, "another one").unwrap();
        assert!(all.look(start + GRACE / 2, false).0.is_empty());
        assert!(matches!(all.look(start + 2 * GRACE, false).0.as_slice(), [Change::Refuse(_)]));
        std::fs::remove_file(&path).unwrap();
        assert!(all.look(start + 3 * GRACE, false).1);
        assert!(matches!(all.look(start + 4 * GRACE, false).0.as_slice(), [Change::Remove(name)] if name == "mine"));
    }

    #[test]
    fn the_built_in_module_waits_before_it_takes_the_place_of_a_removed_one() {
        let (builtin, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&builtin, &own] {
            std::fs::write(dir.path().join("mine.wasm"), "no module").unwrap();
        }
        let mut all = directories(vec![builtin.path().to_owned(), own.path().to_owned()]);
        let start = Instant::now();
        all.look(start, true);
        std::fs::remove_file(own.path().join("mine.wasm")).unwrap();
        assert!(all.look(start, false).0.is_empty());
        let (changes, pending) = all.look(start + 2 * SETTLE, false);
        assert!(changes.is_empty() && pending, "{changes:?}");
        assert!(matches!(all.look(start + GRACE, false).0.as_slice(), [Change::Refuse(_)]));
    }
}
