//! `eto run`: an `ElasticJob` on this machine.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use eto_local::builtin::PolicyDirs;
use eto_local::display::Form;
use eto_local::load::LoadError;
use eto_local::process::Supervisor;
use eto_local::{RunError, RunOptions};

use crate::output::{Format, complain};

/// Arguments of `eto run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 the job succeeded; 1 it failed; 2 it can't be run; 3 its file can't be read; 124 the time limit was reached; \
                        130 stopped by Ctrl-C or q; 143 by SIGTERM, 129 by SIGHUP."
)]
pub(crate) struct RunArgs {
    /// The job's YAML, `-` for stdin.
    job: PathBuf,
    /// Directory of policies (NAME.wasm, NAME.toml) over the built-in ones; watched while the job runs.
    #[arg(long, value_name = "DIR")]
    policies: Option<PathBuf>,
    /// Time between two evaluations: 500ms, 1s, 1m.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = period)]
    period: Duration,
    /// Prometheus to take custom signals from. The built-in signals are measured here.
    #[arg(long, value_name = "URL")]
    prometheus: Option<String>,
    /// Plain lines, also on a terminal.
    #[arg(long)]
    plain: bool,
    /// Directory that the workers run in, instead of the template's workingDir.
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Write the workers' output to DIR/worker-INDEX.log instead of showing it.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Stop the job after this many seconds.
    #[arg(long, value_name = "N")]
    max_seconds: Option<u64>,
}

impl RunArgs {
    /// Whether the live view will be shown, so that nothing else may write to the terminal.
    pub(crate) fn is_live(&self, output: Option<Format>) -> bool {
        self.form(output) == Form::Live
    }

    fn form(&self, output: Option<Format>) -> Form {
        match output {
            Some(Format::Json) => Form::Json,
            Some(Format::Yaml) => Form::Yaml,
            Some(Format::Table) | None if self.plain || !std::io::stdout().is_terminal() => Form::Plain,
            Some(Format::Table) | None => Form::Live,
        }
    }

    fn options(self, output: Option<Format>) -> Result<RunOptions, String> {
        let form = self.form(output);
        if let Some(dir) = self.policies.as_deref().filter(|dir| !dir.is_dir()) {
            return Err(format!("--policies: {} is not a directory; make it first, it may be empty", dir.display()));
        }
        let program =
            std::env::current_exe().map_err(|error| format!("the path of this program is not known: {error}"))?;
        Ok(RunOptions {
            job: self.job,
            policies: PolicyDirs::of_this_process(self.policies),
            period: self.period,
            prometheus: self.prometheus,
            form,
            directory: self.workdir,
            logs: self.logs,
            limit: self.max_seconds.map(Duration::from_secs),
            cache: cache(),
            supervisor: Supervisor { program, arguments: vec!["supervise".into(), "--".into()] },
        })
    }
}

/// Where compiled policies are kept, by the rules of XDG.
fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("eto"))
}

fn period(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = (digits.parse::<u64>(), &text[digits.len()..]);
    let factor = match unit {
        "ms" => Some(1),
        "s" | "" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    let ms = number.ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    ms.filter(|ms| (100..=3_600_000).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| "a time from 100ms to 60m, such as 500ms, 1s or 1m".to_owned())
}

/// Runs the job; what goes wrong before it starts is told on stderr.
pub(crate) fn run(args: RunArgs, output: Option<Format>) -> ExitCode {
    let options = match args.options(output) {
        Ok(options) => options,
        Err(why) => {
            complain("eto run", &why);
            return ExitCode::from(2);
        }
    };
    let ran = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map(|runtime| runtime.block_on(Box::pin(eto_local::run(options))));
    match ran {
        Ok(Ok(outcome)) => outcome.into(),
        Ok(Err(error)) => {
            complain("eto run", &error);
            ExitCode::from(if matches!(error, RunError::Load(LoadError::Unreadable { .. })) { 3 } else { 2 })
        }
        Err(error) => {
            complain("eto run", &format_args!("the runtime can't be started: {error}"));
            ExitCode::from(2)
        }
    }
}

/// `eto supervise`: what `eto run` puts between itself and a worker.
pub(crate) fn supervise(command: &[OsString]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(eto_local::supervise::supervise(command, eto_local::supervise::ORPHAN_GRACE)),
        Err(error) => {
            complain("eto supervise", &format_args!("the runtime can't be started: {error}"));
            ExitCode::from(127)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods() {
        for (text, ms) in [("1s", 1000), ("500ms", 500), ("15", 15_000), ("2m", 120_000)] {
            assert_eq!(period(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "1h", "99ms", "61m", "-1s", "1.5s", "18446744073709551615s"] {
            assert!(period(text).is_err(), "{text}");
        }
    }
}
