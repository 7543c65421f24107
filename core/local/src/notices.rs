//! What changed since it was last told.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use eto_cycle::template::{Role, merged};
use eto_engine::job::ElasticityMode;
use eto_engine::plan::Event;
use eto_policy_host::Snapshot;

use crate::load::Job;
use crate::news::{JobNews, News, PolicyNews, WorkerNews};
use crate::runner::{Runner, now};
use crate::screen::WorkerRow;
use crate::table::{State, Worker};

/// Over how long the live view averages.
const VIEW_WINDOW: Duration = Duration::from_secs(3);

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    job: Option<JobNews>,
    workers: HashMap<String, WorkerNews>,
    policy: Option<PolicyNews>,
}

/// An event of the engine as news.
pub(crate) fn event(event: &Event) -> News {
    News::Event { warning: event.warning, reason: format!("{:?}", event.reason), message: event.message.clone() }
}

/// What the job asks for and gets otherwise here, or not at all.
pub(crate) fn not_here(job: &Job) -> Vec<News> {
    let spec = &job.spec;
    let warn = |reason: &str, message: String| News::Event { warning: true, reason: reason.to_owned(), message };
    let mut all = Vec::new();
    let elasticity = &spec.elasticity;
    if elasticity.mode == ElasticityMode::Native {
        let message = "elasticity.mode Native needs an agent in a pod; here all processes start anew for each change";
        all.push(warn("NoAgent", message.to_owned()));
    }
    let unwatched = [
        ("hangTimeoutSeconds", elasticity.hang_timeout.is_some()),
        ("hangStartTimeoutSeconds", elasticity.hang_start_timeout.is_some()),
        ("memoryGrowth", elasticity.memory_growth.is_some()),
        ("replaceStragglers", elasticity.replace_stragglers),
    ];
    let unwatched: Vec<&str> = unwatched.iter().filter(|(_, set)| *set).map(|(field, _)| *field).collect();
    if !unwatched.is_empty() {
        let message = format!("nothing is done here about elasticity.{}: that needs pods", unwatched.join(", "));
        all.push(warn("NoAgent", message));
    }
    if let Some(placement) = &spec.placement {
        let message = format!("the placement policy {} is not asked: there is one node here", placement.module);
        all.push(warn("NotPlaced", message));
    }
    let left_out = left_out(job);
    if !left_out.is_empty() {
        let message = format!("the first container runs, with this machine's files; passed over: {left_out}");
        all.push(warn("PassedOver", message));
    }
    let overridden = spec.template.as_ref().map(|template| template.overridden.join(", ")).unwrap_or_default();
    if !overridden.is_empty() {
        let message = format!("the template sets {overridden}; each round's own values are used");
        all.push(warn("RankVariablesOverridden", message));
    }
    all
}

/// What else the templates have beside the first container, by name.
fn left_out(job: &Job) -> String {
    let (mut volumes, mut init, mut further) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    // One that can't be read was refused before.
    let templates = Role::all(&job.object).into_iter().filter_map(|role| merged(&job.object, role).ok()?);
    for spec in templates.filter_map(|template| template.spec) {
        let mounts = spec.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
        volumes.extend(mounts.map(|mount| mount.name.clone()));
        volumes.extend(spec.volumes.into_iter().flatten().map(|volume| volume.name));
        init.extend(spec.init_containers.into_iter().flatten().map(|container| container.name));
        further.extend(spec.containers.into_iter().skip(1).map(|container| container.name));
    }
    let kinds = [("volumes", volumes), ("init containers", init), ("further containers", further)];
    let named = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    named.map(|(kind, names)| format!("{kind} {}", Vec::from_iter(names).join(", "))).collect::<Vec<_>>().join("; ")
}

fn state_name(worker: &Worker) -> &'static str {
    match worker.state {
        _ if worker.deleting.is_some() => "stopping",
        State::Waiting => "waiting",
        State::Starting => "starting",
        State::Running => "running",
        State::BackOff(_) => "back-off",
        State::Ended(0) => "succeeded",
        State::Ended(_) => "failed",
    }
}

fn worker_news(worker: &Worker) -> WorkerNews {
    WorkerNews {
        index: worker.plan.index,
        name: worker.plan.name.clone(),
        state: state_name(worker).to_owned(),
        pid: worker.pid,
        round: worker.plan.round,
        world: worker.plan.size,
        restarts: worker.restarts,
        note: worker.note.clone().or(match worker.state {
            State::Ended(code) if code != 0 => Some(format!("exit code {code}")),
            State::BackOff(_) => worker.last_code.map(|code| format!("exit code {code}")),
            _ => None,
        }),
    }
}

impl Runner {
    /// Tells what changed of the job and its workers.
    pub(crate) fn tell_changes(&mut self) {
        let at = now();
        for news in self.changes() {
            self.display.tell(at, &news);
        }
    }

    fn changes(&mut self) -> Vec<News> {
        let mut all = Vec::new();
        let mut workers = HashMap::new();
        let mut ordered: Vec<&Worker> = self.table.workers().iter().collect();
        ordered.sort_by_key(|worker| (worker.plan.round, worker.plan.index));
        for worker in ordered {
            let news = worker_news(worker);
            if self.notices.workers.get(&worker.uid) != Some(&news) {
                all.push(News::Worker(news.clone()));
            }
            workers.insert(worker.uid.clone(), news);
        }
        let mut gone: Vec<WorkerNews> = self
            .notices
            .workers
            .iter()
            .filter(|(uid, _)| !workers.contains_key(*uid))
            .map(|(_, n)| n.clone())
            .collect();
        gone.sort_by_key(|worker| (worker.round, worker.index));
        for mut worker in gone {
            "gone".clone_into(&mut worker.state);
            worker.note = None;
            all.push(News::Worker(worker));
        }
        self.notices.workers = workers;
        let job = self.job_news();
        if self.notices.job.as_ref() != Some(&job) {
            self.notices.job = Some(job.clone());
            all.push(News::Job(job));
        }
        all
    }

    fn job_news(&self) -> JobNews {
        let spec = &self.job.spec;
        let ready = self.table.pods().iter().filter(|pod| pod.is_ready() && pod.deleting.is_none()).count();
        JobNews {
            job: spec.key.to_string(),
            phase: format!("{:?}", self.state.phase),
            target: self.state.target,
            min: spec.min,
            max: spec.max,
            ready: u32::try_from(ready).unwrap_or(u32::MAX),
            round: self.state.round.as_ref().map_or(0, |round| round.generation),
            failures: self.state.failures,
            message: self.state.message.clone(),
        }
    }

    /// Tells which version of the job's policy is served, and why not the newest.
    pub(crate) fn tell_policies(&mut self) {
        let Some(scaling) = &self.job.spec.scaling else { return };
        let news = policy_news(&self.registry.snapshot(), &scaling.module);
        if self.notices.policy.as_ref() != Some(&news) {
            self.notices.policy = Some(news.clone());
            self.display.tell(now(), &News::Policy(news));
        }
    }

    /// Draws the live view anew.
    pub(crate) fn refresh(&mut self) {
        let (table, usage) = (&self.table, &self.sources.usage);
        self.display.refresh(|| {
            let mut rows: Vec<(u64, WorkerRow)> = table.workers().iter().map(|worker| row(worker, usage)).collect();
            rows.sort_by_key(|(round, row)| (*round, row.index));
            rows.into_iter().map(|(_, row)| row).collect()
        });
    }
}

/// What serves under the name, or why nothing does.
fn policy_news(snapshot: &Snapshot, module: &str) -> PolicyNews {
    let refused = || snapshot.failures().get(module).map(|failure| failure.error.to_string());
    let (id, problem) = match snapshot.scaling(module) {
        Ok(_) => (snapshot.get(module).map(|policy| policy.id()), refused()),
        Err(missing) => (None, refused().or(Some(missing.message))),
    };
    PolicyNews {
        name: module.to_owned(),
        version: id.map(|id| id.version.clone()).unwrap_or_default(),
        digest: id.map(|id| id.digest.clone()).unwrap_or_default(),
        problem,
    }
}

fn row(worker: &Worker, usage: &crate::usage::Usage) -> (u64, WorkerRow) {
    let (cpu, memory, gpu) = usage.now(&worker.plan.name, VIEW_WINDOW);
    let row = WorkerRow {
        index: worker.plan.index,
        pid: worker.pid,
        state: state_name(worker).to_owned(),
        cpu,
        memory,
        gpu,
        cpu_request: worker.plan.request.cpu,
        gpu_request: worker.plan.request.gpus,
        restarts: worker.restarts,
    };
    (worker.plan.round, row)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::path::Path;

    use eto_engine::time::Time;

    use super::*;

    #[test]
    fn a_policy_that_is_not_there_is_not_said_to_serve() {
        let news = policy_news(&Snapshot::default(), "nosuch");
        assert_eq!(news.digest, "");
        assert!(news.problem.as_deref().unwrap().contains("there is no module `nosuch`"), "{news:?}");
    }

    #[test]
    fn what_a_job_does_not_get_here_is_told() {
        let told = |spec: &str, container: &str| -> Vec<(String, String)> {
            let text = format!(
                "apiVersion: elastic.ai/v1alpha1\nkind: ElasticJob\nmetadata: {{name: j}}\nspec: {{replicas: 2, {spec} \
                 template: {{spec: {{containers: [{{name: t, command: [torchrun], {container}}}]}}}}}}\n"
            );
            let news = not_here(&crate::load::parse(Path::new("job.yaml"), &text, Time(5)).unwrap());
            let event = |news| match news {
                News::Event { warning: true, reason, message } => (reason, message),
                other => panic!("{other:?}"),
            };
            news.into_iter().map(event).collect()
        };
        assert_eq!(told("elasticity: {mode: Rounds},", ""), []);
        for (spec, container, reason, what) in [
            ("elasticity: {mode: Native},", "", "NoAgent", "Native"),
            (
                "elasticity: {hangTimeoutSeconds: 60, memoryGrowth: {maxMemory: 8Gi}},",
                "",
                "NoAgent",
                "elasticity.hangTimeoutSeconds, memoryGrowth:",
            ),
            ("placementPolicy: {module: binpack},", "", "NotPlaced", "binpack"),
            (
                "volumes: [{name: data, emptyDir: {}}],",
                "volumeMounts: [{name: data, mountPath: /data}]}, {name: proxy, image: b",
                "PassedOver",
                "passed over: volumes data; further containers proxy",
            ),
            ("", "env: [{name: RANK, value: '7'}]", "RankVariablesOverridden", "sets RANK;"),
        ] {
            let told = told(spec, container);
            assert!(told.len() == 1 && told[0].0 == reason && told[0].1.contains(what), "{told:?}");
        }
        let init = told("", "}], initContainers: [{name: fetch, image: b, command: [c]");
        assert!(init.len() == 1 && init[0].1.ends_with("passed over: init containers fetch"), "{init:?}");
    }
}
