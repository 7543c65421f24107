//! What can be asked of a run, why one can't begin, and how one ends.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use eto_engine::job::Mode;
use eto_engine::plan::{NewPod, PodEnv};
use eto_engine::policy::FailureKind;
use eto_engine::state::RoundMode;
use eto_policy_host::{HostError, Registry};
use eto_signals::SettingsError;

use crate::builtin::PolicyDirs;
use crate::display::Form;
use crate::load::{Job, LoadError};
use crate::pod::{self, PodError};
use crate::process::Supervisor;

/// What to run, and how.
#[derive(Debug)]
pub struct RunOptions {
    /// The job's YAML; `-` = standard input.
    pub job: PathBuf,
    /// Where policies are.
    pub policies: PolicyDirs,
    /// Time between two evaluations.
    pub period: Duration,
    /// Where custom signals come from.
    pub prometheus: Option<String>,
    pub form: Form,
    /// Directory that the workers run in, over the template's `workingDir`.
    pub directory: Option<PathBuf>,
    /// Directory for the workers' output, in place of the terminal.
    pub logs: Option<PathBuf>,
    /// The job is stopped after this long.
    pub limit: Option<Duration>,
    /// Where compiled policies are kept between runs.
    pub cache: Option<PathBuf>,
    /// How workers are supervised.
    pub supervisor: Supervisor,
}

/// Why a job could not be run at all.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the job can't be run on this machine: {0}")]
    Pod(#[from] PodError),
    #[error("the job is suspended (spec.suspend: true): set it to false to run it")]
    Suspended,
    #[error("the policy host can't be started: {0}")]
    Host(#[from] HostError),
    #[error("policy `{module}` can't be used: {why}. Policies were looked for in: {places}")]
    Policy { module: String, why: String, places: String },
    #[error("policy `{module}` can't use what spec.scalingPolicy gives it: {why}")]
    Config { module: String, why: String },
    #[error("--prometheus: {0}")]
    Prometheus(#[from] SettingsError),
    #[error("--workdir {0}: there is no such directory; make it, or name another")]
    NoWorkdir(PathBuf),
    #[error("the template's workingDir {0} is no directory of this machine; name one with --workdir")]
    NoWorkingDir(PathBuf),
    #[error("could not {what}: {source}")]
    System { what: String, source: io::Error },
}

pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::System { what, source }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
    /// Stopped before its end, with the exit code that says by what (128 + signal; 124 for the time limit).
    Stopped(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Succeeded => ExitCode::SUCCESS,
            Outcome::Failed => ExitCode::from(1),
            Outcome::Stopped(code) => ExitCode::from(code),
        }
    }
}

/// A template that can't be run is found before anything starts.
pub(crate) fn check_template(job: &Job, options: &RunOptions) -> Result<(), RunError> {
    // One of each role.
    for index in 0..=job.spec.types.count().max(1) {
        let new = NewPod {
            index,
            round: 1,
            size: 2,
            incarnation: 1,
            mode: RoundMode::Recreate,
            env: PodEnv::default(),
            node: None,
            memory: None,
        };
        let plan = pod::blueprint(job, &new, &[], options.directory.as_deref())?;
        if let Some(directory) = plan.launch.directory.filter(|directory| !directory.is_dir()) {
            let by_flag = options.directory.is_some();
            return Err(if by_flag { RunError::NoWorkdir(directory) } else { RunError::NoWorkingDir(directory) });
        }
    }
    Ok(())
}

/// A policy that is not there, or that can't use its config, would be a condition on a cluster; here nobody else will
/// mend it. Any other fault of a policy may be mended while the job runs.
pub(crate) fn check_policy(job: &Job, registry: &Registry, policies: &PolicyDirs) -> Result<(), RunError> {
    let Some(scaling) = job.spec.scaling.as_ref().filter(|scaling| scaling.mode != Mode::Off) else { return Ok(()) };
    let module = scaling.module.clone();
    let asked = match registry.snapshot().scaling(&module) {
        Ok(policy) => policy.wants(&scaling.config),
        Err(failure) => {
            return Err(RunError::Policy { module, why: failure.message, places: policies.to_string() });
        }
    };
    match asked {
        Err(failure) if failure.kind == FailureKind::InvalidConfig => {
            Err(RunError::Config { module, why: failure.message })
        }
        _ => Ok(()),
    }
}
