//! How many processes a worker runs, and who starts them.

use eto_api::{ElasticJob, FrameworkType, Launcher};
use eto_membership::agent::{CommandKind, nproc_per_node};
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

/// `nprocPerNode`, else `PET_NPROC_PER_NODE` of the first container, else the number that its `torchrun` is given. With PyTorch
/// alone, whose processes have a GPU each, else one per GPU where the command is `torchrun` or Python's. Else 1: what a
/// program or a script of the image starts is not known, and to start it several times could start their square.
pub(crate) fn of(job: &ElasticJob, spec: &PodSpec, problems: &mut SpecProblems) -> Processes {
    let first = spec.containers.first();
    let words: Vec<String> =
        first.into_iter().flat_map(|c| c.command.iter().chain(&c.args)).flatten().cloned().collect();
    let (gpus, cpus) = first.map_or((0, 0), resources::devices);
    if let Some((path, asked)) = asked(job, first, &words) {
        let count = read(&asked, gpus, cpus).unwrap_or_else(|why| {
            problems.add(path, why);
            1
        });
        return Processes { count, without_agent: count };
    }
    if !matches!(job.spec.framework_type, None | Some(FrameworkType::PyTorch)) {
        return Processes { count: 1, without_agent: 1 };
    }
    let (gpus, kind) = (gpus.clamp(1, MOST), CommandKind::of(&words, |_| None));
    let (count, without_agent) = match (job.spec.launcher, kind) {
        (Some(Launcher::Command), _) | (None, CommandKind::Torchrun) => (gpus, gpus),
        (Some(Launcher::Agent), _) | (None, CommandKind::Python) => (gpus, 1),
        (None, CommandKind::Launcher | CommandKind::Other) => (1, 1),
    };
    Processes { count, without_agent }
}

/// What the user said, and where.
fn asked(job: &ElasticJob, first: Option<&Container>, command: &[String]) -> Option<(String, String)> {
    match &job.spec.nproc_per_node {
        Some(IntOrString::Int(n)) => Some(("spec.nprocPerNode".to_owned(), n.to_string())),
        Some(IntOrString::String(word)) => Some(("spec.nprocPerNode".to_owned(), word.clone())),
        None => {
            let env = first.and_then(|c| c.env.as_ref()).into_iter().flatten();
            let value = env.filter(|e| e.name == PROCESSES).find_map(|e| e.value.clone());
            let value = value.map(|text| (format!("env {PROCESSES} of the first container"), text));
            let flag = || nproc_per_node(command).filter(|_| job.spec.launcher != Some(Launcher::Agent));
            value.or_else(|| Some(("--nproc-per-node of the first container's command".to_owned(), flag()?)))
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
