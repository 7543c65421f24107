//! The command line of `eto-agent`. It has no options: all it needs to know is in its environment.
#![allow(clippy::disallowed_methods, reason = "adapter: the environment")]

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use eto_agent::{Settings, install, ready, run};

/// What a container runtime gives where it, not the program in it, has failed.
const AGENT_FAILED: u8 = 125;

const USAGE: &str = "\
usage: eto-agent run [--] COMMAND [ARGUMENT...]   be the first process of a training container
       eto-agent install DESTINATION              copy this program there
       eto-agent ready                            whether the agent of this pod runs processes: 0, else 1
       eto-agent --version";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(|a| a.to_str().unwrap_or_default()).collect();
    let outcome = match words.as_slice() {
        ["run", "--", _, ..] => start(&arguments[2..]),
        ["run", first, ..] if *first != "--" => start(&arguments[1..]),
        ["install", _] => install(Path::new(&arguments[1])).map(|()| 0).map_err(|e| e.to_string()),
        ["ready"] => {
            let folder = std::env::var_os("ETO_FOLDER").filter(|f| !f.is_empty());
            ready(folder.as_deref().map(Path::new)).map(|yes| i32::from(!yes)).map_err(|e| e.to_string())
        }
        ["--version"] => {
            println!("eto-agent {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(AGENT_FAILED)),
        Err(why) => {
            eprintln!("eto-agent: {why}");
            ExitCode::from(AGENT_FAILED)
        }
    }
}

fn start(command: &[OsString]) -> Result<i32, String> {
    let settings = Settings::read(|name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    // One thread: the agent leaves the machine to the training.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(|e| format!("could not set up its runtime: {e}"))?;
    let code = runtime.block_on(run(settings, command)).map_err(|e| e.to_string());
    // A look-up of a name that hangs must not hold the end back.
    runtime.shutdown_background();
    code
}
