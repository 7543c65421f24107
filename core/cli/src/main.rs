//! `eto`: run elastic jobs on this machine, and check, describe and ask policies.
//!
//! What is asked for goes to stdout, and nothing else; what is told about it goes to stderr. Named `kubectl-eto` on the
//! `PATH` it is the plugin `kubectl eto`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: the command line reads files")]
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nothing can be written")]

mod args;
mod columns;
mod config_schema;
mod failure;
mod output;
mod policy;
mod run;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command, PolicyCommand};
use failure::Failure;

fn main() -> ExitCode {
    let name = name();
    let command = Cli::command().name(name).bin_name(name);
    let matches = command.get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    // Lines of a log would tear the live view apart; what matters of them is shown in it.
    if !matches!(&cli.command, Command::Run(args) if args.is_live(cli.output)) {
        start_log(cli.verbose);
    }
    match cli.command {
        Command::Run(args) => run::run(args, cli.output),
        Command::Supervise { command } => run::supervise(&command),
        command => answer(command, cli.output, name),
    }
}

/// The commands that print an answer.
fn answer(command: Command, output: Option<output::Format>, name: &str) -> ExitCode {
    match print(command, output, name) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader went away (`eto ... | head`): not an error of ours.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(name, &failure);
            failure.exit_code()
        }
    }
}

/// `kubectl eto` when kubectl calls it.
fn name() -> &'static str {
    let program = std::env::args_os().next();
    let plugin = program.as_deref().and_then(|p| Path::new(p).file_stem()).is_some_and(|stem| stem == "kubectl-eto");
    if plugin { "kubectl eto" } else { "eto" }
}

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        // Its report of a line that it could not write would be a panic where stderr takes nothing.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
}

fn print(command: Command, output: Option<output::Format>, name: &str) -> Result<(), Failure> {
    match command {
        Command::Policy(command) => match command {
            PolicyCommand::Check { module } => policy::check(&module, output),
            PolicyCommand::Describe { module } => policy::describe(&module, output),
            PolicyCommand::Eval { module, input, schema } => {
                if schema {
                    policy::schema(&module, output)
                } else {
                    policy::eval(&module, &input, output)
                }
            }
        },
        Command::Crd => crd(output),
        // These have exit codes of their own; see `main`.
        Command::Run(_) | Command::Supervise { .. } => Ok(()),
        Command::Completions { shell } => {
            let mut command = Cli::command().name("eto").bin_name("eto");
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, name.replace(' ', "-"), &mut script);
            io::stdout().write_all(&script).map_err(Failure::Output)
        }
    }
}

/// The CRD, in the form that `kubectl apply` takes.
fn crd(format: Option<output::Format>) -> Result<(), Failure> {
    let crd = eto_api::crd();
    match format {
        Some(output::Format::Json) => output::print(output::Format::Json, &crd),
        Some(output::Format::Yaml) | None => output::print(output::Format::Yaml, &crd),
        Some(output::Format::Table) => Err(Failure::Usage("a CRD has no table; use --output yaml or json".to_string())),
    }
}
