//! `eto run` as its users run it: real processes, the built policies, a policy swapped while it runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Far more than anything here takes on a busy machine; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// Built by `make policies`, which `make test` does first.
fn built(name: &str) -> PathBuf {
    let out = std::env::var("ETO_POLICIES_OUT")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/policies"), PathBuf::from);
    let path = out.join(format!("{name}.wasm"));
    assert!(path.exists(), "{} is not there: `make policies` builds it", path.display());
    path
}

struct Stage(TempDir);

impl Stage {
    /// `container` is the rest of the container after its name, `spec` further lines of the spec.
    fn new(replicas: u32, spec: &str, command: &str) -> Stage {
        let dir = TempDir::new().unwrap();
        let script = serde_json::to_string(command).unwrap();
        let text = format!(
            "apiVersion: elastic.ai/v1alpha1\nkind: ElasticJob\nmetadata: {{name: t}}\nspec:\n  replicas: {replicas}\n  \
             frameworkType: PyTorch\n{spec}  template:\n    spec:\n      containers:\n      - name: w\n        command: \
             [bash, -c, {script}]\n"
        );
        std::fs::write(dir.path().join("job.yaml"), text).unwrap();
        std::fs::create_dir(dir.path().join("policies")).unwrap();
        Stage(dir)
    }

    /// The same job of another framework.
    fn of_framework(self, name: &str) -> Stage {
        let path = self.0.path().join("job.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("frameworkType: PyTorch", &format!("frameworkType: {name}"))).unwrap();
        self
    }

    /// Serves a policy that asks for `size`, under the name `sizer`.
    fn ask_for(&self, size: u32) {
        let dir = self.0.path().join("policies");
        let write = |name: &str, content: &[u8]| {
            std::fs::write(dir.join(".new"), content).unwrap();
            std::fs::rename(dir.join(".new"), dir.join(name)).unwrap();
        };
        write("sizer.toml", format!("[config]\notherwise = {size}\n").as_bytes());
        // A custom section makes other bytes, and another digest, of the same module.
        let mut module = std::fs::read(built("schedule")).unwrap();
        module.extend([0, 3, 1, b'n', u8::try_from(size).unwrap()]);
        write("sizer.wasm", &module);
    }

    fn command(&self) -> Command {
        self.told_as("json")
    }

    fn told_as(&self, form: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eto"));
        command
            .arg("run")
            .arg(self.0.path().join("job.yaml"))
            .args(["--output", form, "--period", "200ms", "--policies"])
            .arg(self.0.path().join("policies"))
            .arg("--workdir")
            .arg(self.0.path())
            .env("ETO_BUILTIN_POLICIES", self.0.path().join("policies"))
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    fn run(&self) -> Run {
        let mut child = self.command().spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, news) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Run { child, news, begun: Instant::now(), all: Vec::new() }
    }
}

struct Run {
    child: Child,
    news: Receiver<Value>,
    begun: Instant,
    all: Vec<Value>,
}

impl Run {
    /// Waits for news that `wanted` accepts.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let left = LIMIT.saturating_sub(self.begun.elapsed());
            let news = self.news.recv_timeout(left).unwrap_or_else(|_| panic!("{what} did not come: {:#?}", self.all));
            self.all.push(news.clone());
            if wanted(&news) {
                return news;
            }
        }
    }

    fn line(&mut self, text: &str) -> String {
        let has = |n: &Value| n["kind"] == "output" && n["line"].as_str().is_some_and(|l| l.contains(text));
        self.until(text, has)["line"].as_str().unwrap().to_owned()
    }

    /// Lines of output that hold `text`, from as many workers as there should be.
    fn lines(&mut self, text: &str, count: usize) -> BTreeSet<String> {
        (0..count).map(|_| self.line(text)).collect()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for news that `wanted` accepts, what has come already counted.
    fn ever(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let seen = self.all.iter().find(|news| wanted(news)).cloned();
        seen.unwrap_or_else(|| self.until(what, wanted))
    }

    fn end(mut self) -> (Option<i32>, Vec<Value>) {
        while let Ok(news) = self.news.recv_timeout(LIMIT.saturating_sub(self.begun.elapsed())) {
            self.all.push(news);
        }
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.all))
    }
}

impl Drop for Run {
    /// A failed test leaves nothing running either: the supervisors see their owner go.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn gone(pid: &str) {
    let begun = Instant::now();
    while runs(pid) {
        assert!(begun.elapsed() < LIMIT, "process {pid} still runs");
        std::thread::yield_now();
    }
}

const SHOW: &str = "echo ranks $RANK/$WORLD_SIZE of $ETO_ROUND at $MASTER_ADDR; ";
/// The master's end is the job's, so it waits for the others.
const ALL: &str = "touch done.$RANK; while [ $RANK = 0 ] && ! [ -e done.1 -a -e done.2 ]; do sleep 0.02; done";
const WAIT: &str = "trap 'exit 143' TERM; while :; do sleep 0.02; done 2>/dev/null";

const SCALING: &str = "  minReplicas: 1\n  maxReplicas: 4\n  scalingPolicy:\n    module: sizer\n    behavior:\n      \
                       scaleUp: {stabilizationWindowSeconds: 0}\n      scaleDown: {stabilizationWindowSeconds: 0}\n";

fn ranks(world: u32, round: u32) -> BTreeSet<String> {
    (0..world).map(|rank| format!("ranks {rank}/{world} of {round} at 127.0.0.1")).collect()
}

#[test]
fn a_resize_and_a_swap_give_the_right_ranks() {
    let stage = Stage::new(2, SCALING, &format!("{SHOW}{WAIT}"));
    stage.ask_for(3);
    let mut run = stage.run();
    assert_eq!(run.lines("ranks", 2), ranks(2, 1));
    assert_eq!(run.lines("ranks", 3), ranks(3, 2), "grown");
    let grown = run.ever("three ready", |n| n["kind"] == "job" && n["ready"] == 3);
    assert_eq!((&grown["target"], &grown["round"]), (&Value::from(3), &Value::from(2)));
    let decision = run.until("a decision", |n| n["kind"] == "decision");
    let before = decision["policy"]["digest"].clone();
    // Another version under the running job: the next decision is its own.
    stage.ask_for(1);
    let decided =
        run.until("a decision of the new policy", |n| n["kind"] == "decision" && n["policy"]["digest"] != before);
    assert!(decided["policy"]["digest"].is_string() && decided["proposed"] == 1);
    assert_eq!(run.lines("ranks", 1), ranks(1, 3), "shrunk");
    run.signal("-INT");
    let (code, news) = run.end();
    assert_eq!(code, Some(130));
    let sequences: Vec<u64> =
        news.iter().filter(|n| n["kind"] == "decision").map(|n| n["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.windows(2).all(|w| w[1] == w[0] + 1), "no evaluation was missed: {sequences:?}");
}

#[test]
fn success_is_0_and_the_end_of_the_job() {
    let stage = Stage::new(3, "", &format!("{SHOW}{ALL}"));
    let mut run = stage.run();
    assert_eq!(run.lines("ranks", 3), ranks(3, 1));
    let (code, news) = run.end();
    assert_eq!(code, Some(0));
    assert!(news.iter().any(|n| n["kind"] == "job" && n["phase"] == "Succeeded"), "{news:#?}");
}

#[test]
fn the_same_is_told_as_documents_of_yaml() {
    let stage = Stage::new(1, "", "echo here; echo 'on: - #'");
    let output = stage.told_as("yaml").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let all: Vec<Value> =
        serde_yaml::Deserializer::from_str(&text).map(|d| serde::Deserialize::deserialize(d).unwrap()).collect();
    let (_, json) = stage.run().end();
    let kinds = |all: &[Value]| -> BTreeSet<String> { all.iter().map(|n| n["kind"].to_string()).collect() };
    assert_eq!(kinds(&all), kinds(&json));
    assert!(all.iter().any(|n| n["line"] == "on: - #") && all.iter().all(|n| n["time"].is_string()), "{text}");
}

#[test]
fn several_processes_in_a_worker_have_ranks_of_their_own() {
    let show = "echo process $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE worker $ETO_RANK; ";
    let all = "touch done.$RANK; while [ $RANK = 0 ] && ! [ -e done.1 -a -e done.2 -a -e done.3 ]; do sleep 0.02; done";
    let stage = Stage::new(2, "  nprocPerNode: 2\n", &format!("{show}{all}"));
    let mut run = stage.run();
    let want = (0..4).map(|rank| format!("process {rank}/4 local {}/2 worker {}", rank % 2, rank / 2));
    assert_eq!(run.lines("process", 4), want.collect());
    assert_eq!(run.end().0, Some(0));
}

#[test]
fn a_chief_and_a_server_stay_while_workers_come() {
    let tell = "echo type $ETO_REPLICA_TYPE $ETO_REPLICA_TYPE_INDEX of $ETO_ROUND in $ETO_REPLICA_TYPES; ";
    let chief = "if [ $ETO_REPLICA_TYPE = chief ]; then while ! [ -e end ]; do sleep 0.02; done; exit 0; fi; ";
    let types = format!(
        "  replicaTypes:\n  - name: chief\n  - name: ps\n    template: {{spec: {{containers: [{{name: s, command: [bash, -c, \
         'echo server; {tell}exec sleep 1000']}}]}}}}\n"
    );
    let spec = SCALING.replace("minReplicas: 1", "minReplicas: 3") + &types;
    let stage = Stage::new(3, &spec, &format!("trap 'exit 143' TERM; {tell}{chief}{WAIT}")).of_framework("Custom");
    // A policy sizes the workers: two of them are four members.
    stage.ask_for(2);
    let mut run = stage.run();
    let told = |all: &[&str], round: u32| -> BTreeSet<String> {
        let types: Vec<&str> = all.iter().map(|member| member.split(' ').next().unwrap()).collect();
        all.iter().map(|member| format!("type {member} of {round} in {}", types.join(","))).collect()
    };
    assert_eq!(run.lines("type", 3), told(&["chief 0", "ps 0", "worker 0"], 1));
    run.ever("the server's own command", |n| n["line"] == "server");
    assert_eq!(run.lines("type", 4), told(&["chief 0", "ps 0", "worker 0", "worker 1"], 2));
    let grown = run.ever("all ready", |n| n["kind"] == "job" && n["ready"] == 4);
    assert_eq!(grown["target"], 4);
    std::fs::write(stage.0.path().join("end"), "").unwrap();
    let (code, news) = run.end();
    assert_eq!(code, Some(0));
    let last = news.iter().rfind(|n| n["kind"] == "job").unwrap();
    assert_eq!((&last["phase"], &last["failures"]), (&Value::from("Succeeded"), &Value::from(0)), "{last}");
}

#[test]
fn a_worker_is_restarted_until_backoff_limit() {
    let stage = Stage::new(1, "  restartPolicy: OnFailure\n  backoffLimit: 1\n", "echo try; exit 3");
    let (code, news) = stage.run().end();
    assert_eq!(code, Some(1));
    let tries = news.iter().filter(|n| n["kind"] == "output" && n["line"] == "try").count();
    assert_eq!(tries, 2, "the first and one more: {news:#?}");
    let last = news.iter().rfind(|n| n["kind"] == "job").unwrap();
    assert_eq!(last["phase"], "Failed");
    assert!(last["message"].as_str().unwrap().contains("backoffLimit"), "{last}");
}

#[test]
fn a_deaf_worker_is_killed_at_the_deadline() {
    let deaf = "trap '' TERM; echo pid $BASHPID; while :; do sleep 0.02; done";
    let stage = Stage::new(1, "  elasticity: {drainDeadlineSeconds: 1}\n", deaf);
    let mut run = stage.run();
    let pid = run.line("pid").replace("pid ", "");
    let asked = Instant::now();
    run.signal("-TERM");
    let (code, _) = run.end();
    assert_eq!(code, Some(143));
    assert!(asked.elapsed() >= Duration::from_secs(1), "the grace was kept");
    assert!(!runs(&pid));
}

#[test]
fn kill_9_leaves_no_orphan() {
    // One process in the group, one in a session of its own.
    let script = "setsid bash -c 'echo pid $BASHPID; exec sleep 1000' & echo pid $BASHPID; exec sleep 1000";
    let stage = Stage::new(2, "", script);
    let mut run = stage.run();
    let pids: Vec<String> = run.lines("pid", 4).iter().map(|line| line.replace("pid ", "")).collect();
    assert!(pids.iter().all(|pid| runs(pid)));
    run.signal("-KILL");
    run.child.wait().unwrap();
    for pid in &pids {
        gone(pid);
    }
}

#[test]
fn what_is_told_and_can_not_be_written_ends_no_training() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let stage = Stage::new(3, "", &format!("{SHOW}{ALL}"));
    // Refused, and told on stderr.
    std::fs::write(stage.0.path().join("policies/broken.wasm"), "no module").unwrap();
    let code = stage.command().stdout(full()).stderr(full()).status().unwrap().code();
    assert_eq!(code, Some(0));
    let reader_gone = || std::io::pipe().unwrap().1;
    let code = stage.command().stdout(reader_gone()).stderr(reader_gone()).status().unwrap().code();
    assert_eq!(code, Some(0));
    let none = Command::new(env!("CARGO_BIN_EXE_eto")).args(["run", "/no/such/job.yaml"]).stderr(full()).status();
    assert_eq!(none.unwrap().code(), Some(3));
}

#[test]
fn what_can_not_run_says_why_and_starts_nothing() {
    let stage = Stage::new(1, "  scalingPolicy: {module: nosuch}\n", "echo no");
    stage.ask_for(1);
    let out = stage.command().output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("nosuch") && text.contains("--policies"), "{text}");
    assert!(out.stdout.is_empty());
    let stage = Stage::new(1, "  scalingPolicy: {module: sizer, config: {otherwis: 2}}\n", "echo no");
    stage.ask_for(1);
    let out = stage.command().output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("sizer") && text.contains("otherwis") && text.contains("`otherwise`"), "{text}");
    assert!(out.stdout.is_empty());
    let none = Command::new(env!("CARGO_BIN_EXE_eto")).args(["run", "/no/such/job.yaml"]).output().unwrap();
    assert_eq!(none.status.code(), Some(3));
}
