//! How many processes a worker runs, and who starts them.

use eto_api::{ElasticJob, FrameworkType, Launcher};
use eto_membership::agent::is_launcher;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::{SpecProblems, resources};

/// The variable by which users of `torchrun` say how many processes a worker runs.
pub(crate) const PROCESSES: &str = "PET_NPROC_PER_NODE";

/// The most processes of one worker.
const MOST: u32 = 1024;

/// Processes of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processes {
    /// Where an agent or `eto run` starts what the command does not.
    pub(crate) count: u32,
    /// Where nobody is there beside the command. Another number only where the user named none: nobody would start more than
    /// one of a plain script, and those who wait for the others would wait for ever.
    pub(crate) without_agent: u32,
}

/// `nprocPerNode`, else `PET_NPROC_PER_NODE` of the first container, else one per GPU with PyTorch, whose processes have one
/// each, else 1.
pub(crate) fn of(job: &ElasticJob, spec: &PodSpec, problems: &mut SpecProblems) -> Processes {
    let first = spec.containers.first();
    let (gpus, cpus) = first.map_or((0, 0), resources::devices);
    if let Some((path, asked)) = asked(job, first) {
        let count = read(&asked, gpus, cpus).unwrap_or_else(|why| {
            problems.add(path, why);
            1
        });
        return Processes { count, without_agent: count };
    }
    let torch = matches!(job.spec.framework_type, None | Some(FrameworkType::PyTorch));
    let count = if torch { gpus.clamp(1, MOST) } else { 1 };
    Processes { count, without_agent: if launches(job, first) { count } else { 1 } }
}

/// What the user said, and where.
fn asked(job: &ElasticJob, first: Option<&Container>) -> Option<(String, String)> {
    match &job.spec.nproc_per_node {
        Some(IntOrString::Int(n)) => Some(("spec.nprocPerNode".to_owned(), n.to_string())),
        Some(IntOrString::String(word)) => Some(("spec.nprocPerNode".to_owned(), word.clone())),
        None => {
            let env = first.and_then(|c| c.env.as_ref()).into_iter().flatten();
            let value = env.filter(|e| e.name == PROCESSES).find_map(|e| e.value.clone());
            value.map(|text| (format!("env {PROCESSES} of the first container"), text))
        }
    }
}

fn read(asked: &str, gpus: u32, cpus: u32) -> Result<u32, String> {
    let number = match asked.trim() {
        "gpu" if gpus == 0 => return Err(format!("is \"{asked}\", but its container asks for no GPU")),
        "gpu" => Some(gpus),
        "cpu" => Some(cpus.max(1)),
        // As torchrun reads it on a machine with these devices.
        "auto" => Some(if gpus > 0 { gpus } else { cpus.max(1) }),
        number => number.parse().ok(),
    };
    number.filter(|n| (1..=MOST).contains(n)).ok_or_else(|| {
        format!(
            "is \"{asked}\", and must be a whole number from 1 to {MOST}, or gpu, cpu or auto (one for each that the \
             container asks for): it makes up WORLD_SIZE"
        )
    })
}

/// Whether the command is known to start the worker's processes by itself. What is in a script of the image isn't read here.
fn launches(job: &ElasticJob, first: Option<&Container>) -> bool {
    job.spec.launcher.map_or_else(
        || {
            let parts = first.map(|c| [c.command.as_deref(), c.args.as_deref()]);
            let words: Vec<String> = parts.into_iter().flatten().flatten().flatten().cloned().collect();
            is_launcher(&words, |_| None)
        },
        |launcher| launcher == Launcher::Command,
    )
}
