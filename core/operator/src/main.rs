//! The operator's process: settings, log, exit codes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: environment, files, signals")]
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nothing can be written")]

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use eto_operator::settings::{Log, LogFormat, Settings, SettingsError, Source, command, resolve};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let flags = command().get_matches();
    let settings = match settings(&flags) {
        Ok(settings) => settings,
        Err(error) => {
            complain(&error);
            return ExitCode::from(2);
        }
    };
    if flags.get_flag("print-settings") {
        let mut out = io::stdout().lock();
        return match out.write_all(settings.shown().as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format_args!("the settings can't be written: {error}"));
                ExitCode::FAILURE
            }
        };
    }
    if let Err(message) = logging(&settings.log) {
        complain(&message);
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format_args!("threads can't be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let (stop, stopped) = watch::channel(false);
    let outcome = runtime.block_on(async {
        tokio::spawn(until_told(stop));
        eto_operator::run(settings, stopped).await
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator can't run");
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Tells on stderr what is wrong. Where that can't be written there is nobody to tell.
fn complain(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "elastic-training-operator: {what}");
}

fn settings(flags: &clap::ArgMatches) -> Result<Settings, SettingsError> {
    let mut source = Source { file: None, environment: std::env::vars_os().filter_map(text).collect() };
    if let Some(path) = flags.get_one::<String>("config").filter(|p| !p.is_empty()) {
        let text = read(path).map_err(|e| SettingsError::Unreadable { path: path.clone(), message: e.to_string() })?;
        source.file = Some((path.clone(), text));
    }
    let settings = resolve(&source, flags)?;
    eto_operator::source::check(&settings.prometheus).map_err(|e| SettingsError::Inconsistent(e.to_string()))?;
    filter(&settings.log).map_err(SettingsError::Inconsistent)?;
    Ok(settings)
}

fn read(path: &str) -> std::io::Result<String> {
    let bytes = eto_signals::read_file(path.as_ref())?;
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8"))
}

/// Variables that are no text are none of ours.
fn text((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// What a word of `log.level` may be that names no part of the program.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

fn filter(log: &Log) -> Result<EnvFilter, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("log.level `{}`: {why}", log.level);
    // To the library a word that is no level is a part of the program, with all that it has to say, and nothing else.
    // Commas within brackets part fields of a span and not words.
    let mut words = log.level.split(',').map(str::trim).filter(|word| !log.level.contains('[') && !word.contains('='));
    if let Some(word) = words.find(|word| !LEVELS.contains(&word.to_ascii_lowercase().as_str())) {
        return Err(wrong(&format!(
            "`{word}` is none of {}; a part of the program is written PART=LEVEL",
            LEVELS.join(", ")
        )));
    }
    EnvFilter::try_new(with_quiet_libraries(&log.level)).map_err(|e| wrong(&e))
}

fn logging(log: &Log) -> Result<(), String> {
    let filter = filter(log)?;
    // Its report of a line that it could not write would be a panic where stderr takes nothing.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    let set = match log.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(false).try_init(),
    };
    set.map_err(|e| e.to_string())
}

/// The client library reports each failed request too, without what was asked or what mends it; who needs that asks for
/// `debug`, or for a filter of his own.
fn with_quiet_libraries(level: &str) -> String {
    match level.trim().to_ascii_lowercase().as_str() {
        "error" | "warn" | "info" => format!("{level},kube_client=off,kube_runtime=off"),
        _ => level.to_owned(),
    }
}

/// SIGTERM or SIGINT: stop in good order. A second one ends the process at once.
async fn until_told(stop: watch::Sender<bool>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals can't be caught; the operator ends only by SIGKILL");
        return std::future::pending().await;
    };
    for told in 0_u8.. {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if told == 0 {
            tracing::info!("told to stop; finishing what is being written");
            stop.send_replace(true);
        } else {
            std::process::exit(130);
        }
    }
}
