//! Directories of modules: every way a file can change, while the operator runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Guest, host, input};
use eto_engine::policy::FailureKind;
use eto_policy_host::{Registry, Snapshot, Watcher};

/// Far more than a change takes, so that only what never comes fails a test.
const LONG: Duration = Duration::from_secs(20);

struct Setup {
    root: tempfile::TempDir,
    registry: Arc<Registry>,
    watcher: Watcher,
}

/// Directories of these names below a fresh root, watched.
fn watch(dirs: &[&str], before: impl FnOnce(&Path)) -> Setup {
    let root = tempfile::tempdir().unwrap();
    before(root.path());
    let registry = Registry::new();
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| root.path().join(dir)).collect();
    let watcher = Watcher::start(host(), &registry, dirs).unwrap();
    Setup { root, registry, watcher }
}

fn one_dir(before: impl FnOnce(&Path)) -> Setup {
    watch(&["policies"], |root| {
        fs::create_dir(root.join("policies")).unwrap();
        before(&root.join("policies"));
    })
}

impl Setup {
    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    #[track_caller]
    fn wait(&self, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let found = self.registry.wait_for(LONG, wanted);
        found.unwrap_or_else(|| panic!("never came: {:?}", self.registry.snapshot()))
    }

    #[track_caller]
    fn wait_answer(&self, name: &str, target: u32) -> Arc<Snapshot> {
        self.wait(|snapshot| answer(snapshot, name) == Some(target))
    }
}

fn answer(snapshot: &Snapshot, name: &str) -> Option<u32> {
    snapshot.scaling(name).ok()?.evaluate(&input(2)).ok()?.value.target
}

fn failure(snapshot: &Snapshot, name: &str) -> Option<&'static str> {
    snapshot.failures().get(name).map(|failure| failure.error.reason())
}

fn good(target: u32) -> Vec<u8> {
    Guest::answering(target).component()
}

#[test]
fn all_is_loaded_before_start_returns() {
    let setup = one_dir(|dir| {
        fs::write(dir.join("one.wasm"), good(1)).unwrap();
        fs::write(dir.join("two.wasm"), Guest::answering(2).core()).unwrap();
        fs::write(dir.join("bad.wasm"), b"nonsense").unwrap();
        fs::write(dir.join("notes.txt"), b"no module").unwrap();
        fs::write(dir.join(".hidden.wasm"), b"an editor's").unwrap();
        fs::create_dir(dir.join("folder.wasm")).unwrap();
    });
    let now = setup.registry.snapshot();
    assert_eq!((answer(&now, "one"), answer(&now, "two")), (Some(1), Some(2)));
    assert_eq!(now.failures().keys().collect::<Vec<_>>(), ["bad"]);
    assert_eq!(now.policies().len(), 2);
    assert!(now.failures()["bad"].digest.starts_with("sha256:"));
    assert!(now.failures()["bad"].since_ms > 1_600_000_000_000);
}

#[test]
fn new_changed_and_removed_files_are_followed() {
    let setup = one_dir(|_| {});
    fs::write(setup.path("policies/hpa.wasm"), good(1)).unwrap();
    setup.wait_answer("hpa", 1);
    fs::write(setup.path("policies/hpa.wasm"), good(2)).unwrap();
    let second = setup.wait_answer("hpa", 2);
    assert_eq!(second.get("hpa").unwrap().id().version, "2.0.0");
    fs::remove_file(setup.path("policies/hpa.wasm")).unwrap();
    let gone = setup.wait(|snapshot| snapshot.policies().is_empty());
    let failure = gone.scaling("hpa").err().unwrap();
    assert_eq!(failure.kind, FailureKind::Missing);
    // Who holds the old snapshot goes on with the old version.
    assert_eq!(answer(&second, "hpa"), Some(2));
}

#[test]
fn a_bad_candidate_leaves_the_last_good_one_serving_and_says_why() {
    let setup = one_dir(|dir| fs::write(dir.join("hpa.wasm"), good(1)).unwrap());
    fs::write(setup.path("policies/hpa.wasm"), wat::parse_str("(module)").unwrap()).unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa") == Some("NotAComponent"));
    assert_eq!(answer(&now, "hpa"), Some(1));
    fs::write(setup.path("policies/hpa.wasm"), good(2)).unwrap();
    let now = setup.wait_answer("hpa", 2);
    assert!(now.failures().is_empty(), "what is mended is forgotten");
}

#[test]
fn a_version_that_answers_its_golden_cases_otherwise_is_not_served() {
    let golden = |target: u32| {
        let case = serde_json::json!({"name": "two workers", "input": input(2), "expect": {"target": target}});
        serde_json::to_vec(&[case]).unwrap()
    };
    let setup = one_dir(|dir| {
        fs::write(dir.join("hpa.wasm"), good(1)).unwrap();
        fs::write(dir.join("hpa.golden.json"), golden(1)).unwrap();
    });
    assert_eq!(answer(&setup.registry.snapshot(), "hpa"), Some(1));
    fs::write(setup.path("policies/hpa.wasm"), good(2)).unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa") == Some("GoldenFailed"));
    assert_eq!(answer(&now, "hpa"), Some(1), "the last good one serves");
    let said = now.failures()["hpa"].error.to_string();
    assert!(said.contains("two workers") && said.contains("wanted target 1, got 2"), "{said}");
    // The cases are looked at again when they change, as the module is.
    fs::write(setup.path("policies/hpa.golden.json"), golden(2)).unwrap();
    assert!(setup.wait_answer("hpa", 2).failures().is_empty());
    fs::write(setup.path("policies/hpa.golden.json"), "[{").unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa") == Some("BadGolden"));
    assert_eq!(answer(&now, "hpa"), Some(2));
    fs::remove_file(setup.path("policies/hpa.golden.json")).unwrap();
    setup.wait(|snapshot| snapshot.failures().is_empty());
}

#[test]
fn a_half_written_file_is_no_candidate_until_it_is_whole_or_left_so() {
    let setup = one_dir(|dir| fs::write(dir.join("hpa.wasm"), good(1)).unwrap());
    let bytes = good(2);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    setup.registry.on_change(move |snapshot| {
        listener.lock().unwrap().push((answer(snapshot, "hpa"), failure(snapshot, "hpa")));
    });
    // Left half-written: refused in the end, the old one serves.
    fs::write(setup.path("policies/hpa.wasm"), &bytes[..bytes.len() / 2]).unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa") == Some("Truncated"));
    assert_eq!(answer(&now, "hpa"), Some(1));
    // Written to its end: served.
    fs::write(setup.path("policies/hpa.wasm"), &bytes).unwrap();
    setup.wait_answer("hpa", 2);
    assert_eq!(*heard.lock().unwrap(), [(Some(1), Some("Truncated")), (Some(2), None)]);
}

#[test]
fn editors_that_rename_are_followed() {
    let setup = one_dir(|dir| fs::write(dir.join("hpa.wasm"), good(1)).unwrap());
    // Write aside, rename over.
    fs::write(setup.path("policies/.hpa.wasm.swp"), good(2)).unwrap();
    fs::rename(setup.path("policies/.hpa.wasm.swp"), setup.path("policies/hpa.wasm")).unwrap();
    setup.wait_answer("hpa", 2);
    // Move the old one away, write anew, drop the old one.
    fs::rename(setup.path("policies/hpa.wasm"), setup.path("policies/hpa.wasm~")).unwrap();
    fs::write(setup.path("policies/hpa.wasm"), good(3)).unwrap();
    fs::remove_file(setup.path("policies/hpa.wasm~")).unwrap();
    setup.wait_answer("hpa", 3);
    // The same bytes under another name are another policy.
    fs::rename(setup.path("policies/hpa.wasm"), setup.path("policies/other.wasm")).unwrap();
    let now = setup.wait(|snapshot| answer(snapshot, "other") == Some(3) && snapshot.get("hpa").is_none());
    assert_eq!(now.policies().len(), 1);
}

/// What kubelet does with a ConfigMap volume: files are links into `..data`, which is a link to a dated directory and
/// is swapped whole.
fn config_map(dir: &Path, version: &str, files: &[(&str, Vec<u8>)]) {
    let fresh = format!("..{version}");
    fs::create_dir_all(dir.join(&fresh)).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(&fresh).join(name), bytes).unwrap();
    }
    let before = fs::read_link(dir.join("..data")).ok();
    symlink(&fresh, dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    for (name, _) in files {
        if !dir.join(name).is_symlink() {
            symlink(Path::new("..data").join(name), dir.join(name)).unwrap();
        }
    }
    if let Some(before) = before {
        fs::remove_dir_all(dir.join(before)).unwrap();
    }
}

#[test]
fn a_config_map_volume_is_followed() {
    let setup = one_dir(|dir| config_map(dir, "v1", &[("hpa.wasm", good(1)), ("gpu.wasm", good(5))]));
    assert_eq!(answer(&setup.registry.snapshot(), "hpa"), Some(1));
    let dir = setup.path("policies");
    config_map(&dir, "v2", &[("hpa.wasm", good(2)), ("gpu.wasm", good(6))]);
    let now = setup.wait_answer("hpa", 2);
    assert_eq!(answer(&now, "gpu"), Some(6), "both change in one revision");
    config_map(&dir, "v3", &[("hpa.wasm", good(3)), ("gpu.wasm", b"\0asm".to_vec())]);
    let now = setup.wait(|snapshot| answer(snapshot, "hpa") == Some(3) && failure(snapshot, "gpu").is_some());
    assert_eq!(answer(&now, "gpu"), Some(6), "the broken one goes on as it was");
}

#[test]
fn settings_beside_a_module_are_followed() {
    let setup = one_dir(|dir| fs::write(dir.join("hpa.wasm"), good(1)).unwrap());
    let fuel = |snapshot: &Snapshot| snapshot.get("hpa").map(|policy| policy.settings().limits.fuel);
    fs::write(setup.path("policies/hpa.toml"), "[limits]\nfuel = 123456\n").unwrap();
    setup.wait(|snapshot| fuel(snapshot) == Some(123_456));
    fs::write(setup.path("policies/hpa.toml"), "[limits]\nfule = 1\n").unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa") == Some("BadSettings"));
    assert_eq!(fuel(&now), Some(123_456));
    assert!(now.failures()["hpa"].error.to_string().contains("hpa.toml"));
    fs::remove_file(setup.path("policies/hpa.toml")).unwrap();
    let now = setup.wait(|snapshot| fuel(snapshot) == Some(50_000_000));
    assert!(now.failures().is_empty());
}

#[test]
fn a_later_directory_overrides_an_earlier_one() {
    let setup = watch(&["built-in", "mine"], |root| {
        fs::create_dir(root.join("built-in")).unwrap();
        fs::create_dir(root.join("mine")).unwrap();
        fs::write(root.join("built-in/hpa.wasm"), good(1)).unwrap();
        fs::write(root.join("mine/hpa.wasm"), b"broken").unwrap();
    });
    let now = setup.registry.snapshot();
    assert_eq!(
        (answer(&now, "hpa"), failure(&now, "hpa")),
        (Some(1), Some("NotWasm")),
        "better the built-in than none"
    );
    fs::write(setup.path("mine/hpa.wasm"), good(2)).unwrap();
    setup.wait_answer("hpa", 2);
    fs::write(setup.path("mine/hpa.wasm"), b"broken").unwrap();
    let now = setup.wait(|snapshot| failure(snapshot, "hpa").is_some());
    assert_eq!(answer(&now, "hpa"), Some(2), "the last good one, not the built-in");
    fs::remove_file(setup.path("mine/hpa.wasm")).unwrap();
    let now = setup.wait_answer("hpa", 1);
    assert!(now.failures().is_empty());
}

#[test]
fn directories_may_come_go_and_come_back() {
    let setup = watch(&["policies"], |_| {});
    assert_eq!(setup.registry.snapshot().policies().len(), 0);
    fs::create_dir(setup.path("policies")).unwrap();
    fs::write(setup.path("policies/hpa.wasm"), good(1)).unwrap();
    setup.wait_answer("hpa", 1);
    fs::remove_dir_all(setup.path("policies")).unwrap();
    setup.wait(|snapshot| snapshot.policies().is_empty());
    fs::create_dir(setup.path("policies")).unwrap();
    fs::write(setup.path("policies/hpa.wasm"), good(2)).unwrap();
    setup.wait_answer("hpa", 2);
    fs::write(setup.path("policies/hpa.wasm"), good(3)).unwrap();
    setup.wait_answer("hpa", 3);
}

#[test]
fn odd_files_are_refused_with_their_reason() {
    let setup = one_dir(|dir| {
        fs::write(dir.join("My_Policy.wasm"), good(1)).unwrap();
        symlink("nowhere", dir.join("dangling.wasm")).unwrap();
        let made = Command::new("mkfifo").arg(dir.join("pipe.wasm")).status().unwrap();
        assert!(made.success());
    });
    let now = setup.registry.snapshot();
    assert_eq!(failure(&now, "My_Policy"), Some("BadName"));
    assert!(now.failures()["My_Policy"].error.to_string().contains("my-policy.wasm"));
    assert_eq!(failure(&now, "pipe"), Some("Unreadable"));
    assert_eq!(failure(&now, "dangling"), None);
    assert!(now.policies().is_empty());
}

#[test]
fn a_missing_module_names_the_nearest() {
    let setup = one_dir(|dir| {
        fs::write(dir.join("gpu-efficiency.wasm"), good(1)).unwrap();
        fs::write(dir.join("spread.wasm"), Guest::placement().component()).unwrap();
        fs::write(dir.join("broken.wasm"), b"").unwrap();
    });
    let now = setup.registry.snapshot();
    let why = |name: &str| {
        let failure = now.scaling(name).err().unwrap();
        assert_eq!(failure.kind, FailureKind::Missing);
        failure.message
    };
    assert!(why("gpu-eficiency").contains("did you mean `gpu-efficiency`"));
    assert!(why("nothing-like-it").contains("served are: gpu-efficiency"));
    assert!(why("spread").contains("is a placement policy"));
    assert!(why("broken").contains("can't be served") && why("broken").contains("empty"));
    assert!(now.placement("spread").is_ok());
    assert!(now.placement("spred").err().unwrap().message.contains("`spread`"));
}

#[test]
fn fifty_swaps_under_load_lose_no_call() {
    const SWAPS: u32 = 50;
    let setup = one_dir(|dir| fs::write(dir.join("hpa.wasm"), good(1)).unwrap());
    let done = AtomicBool::new(false);
    let (registry, done_ref) = (&setup.registry, &done);
    let calls = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    let (mut calls, mut last) = (0_u64, 0);
                    while !done_ref.load(Ordering::Relaxed) {
                        let policy = registry.snapshot().scaling("hpa").expect("always served");
                        let target = policy.evaluate(&input(16)).expect("always answered").value.target.unwrap();
                        assert!(target >= last, "an older version came back");
                        last = target;
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        for version in 2..=SWAPS + 1 {
            let aside = setup.path("policies/.aside");
            fs::write(&aside, good(version)).unwrap();
            fs::rename(&aside, setup.path("policies/hpa.wasm")).unwrap();
            setup.wait(|snapshot| snapshot.get("hpa").unwrap().id().version == format!("{version}.0.0"));
        }
        done.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum::<u64>()
    });
    assert!(calls >= u64::from(SWAPS), "{calls}");
    assert!(setup.registry.snapshot().revision() > u64::from(SWAPS));
    drop(setup.watcher);
}
