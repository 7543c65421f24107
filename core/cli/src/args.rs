//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::output::Format;
use crate::run::RunArgs;

/// Elastic training: run jobs on this machine; check, describe and ask policies.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit status: 0 done; 1 refused, with the reason (a module that can't be served, a policy that did not \
                  answer, a job that failed); 2 wrong use; 3 a file can't be read or written."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Form of what is printed; each command has its own default.
    #[arg(long, short, global = true, value_enum)]
    pub(crate) output: Option<Format>,
    /// Tell more (twice: everything) on stderr.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an ElasticJob on this machine, without a cluster.
    Run(RunArgs),
    /// Stand between `eto run` and one worker.
    #[command(hide = true)]
    Supervise {
        /// The worker's program and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Check, describe and ask policy modules.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Print the `CustomResourceDefinition` of `ElasticJob`.
    Crd,
    /// Print the completion script of a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Load a module as the operator would, with NAME.toml beside it. Exit status 1 and the reason if it can't be
    /// served.
    Check {
        /// The module's file, NAME.wasm.
        module: PathBuf,
    },
    /// Show what a module says of itself: signals, config, version.
    Describe {
        /// The module's file, NAME.wasm.
        module: PathBuf,
    },
    /// Ask a module once: an input as JSON in, its decision with reasons, fuel and time out.
    Eval {
        /// The module's file, NAME.wasm.
        module: PathBuf,
        /// File of the input, `-` for stdin. An `input` or `placement-input` line of the decision log works too.
        #[arg(long, short, default_value = "-", value_name = "FILE")]
        input: PathBuf,
        /// Print the JSON Schema of the input instead.
        #[arg(long, conflicts_with = "input")]
        schema: bool,
    },
}
