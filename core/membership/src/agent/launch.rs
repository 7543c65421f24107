//! What is started for a round.

use std::collections::BTreeMap;

use crate::{Assignment, FrameworkKind, member_env};

/// A round to start in, and the place in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The assignment, with order `Run`.
    pub assignment: Assignment,
    /// Position in `assignment.round.members`.
    pub rank: usize,
}

impl Launch {
    /// The round's generation.
    pub fn generation(&self) -> u64 {
        self.assignment.round.generation
    }

    /// Variables of each process to start, at least one. `launcher`: the command starts the processes of a member
    /// itself (see [`is_launcher`]), so it is started once.
    ///
    /// Later wins: the assignment's own variables, then the round's ([`member_env`]), then those of the process:
    /// `ETO_LOCAL_RANK` and `ETO_LOCAL_WORLD_SIZE` always, and where a member has several processes `ETO_PROCESS_RANK`
    /// and `ETO_PROCESS_COUNT` (over all members) and the framework's own. TensorFlow uses all devices of a machine from
    /// one process: there is one.
    pub fn environments(&self, launcher: bool) -> Vec<BTreeMap<String, String>> {
        let Assignment { round, framework, env, .. } = &self.assignment;
        let mut base = env.clone();
        base.extend(member_env(*framework, round, self.rank));
        let here = round.members.get(self.rank).map_or(1, |m| m.processes.max(1));
        let count = if launcher || *framework == FrameworkKind::TensorFlow { 1 } else { here };
        let before: u32 = round.members.iter().take(self.rank).map(|m| m.processes.max(1)).sum();
        let total = round.processes();
        (0..count)
            .map(|local| {
                let mut env = base.clone();
                let mut set = |name: &str, value: u32| env.insert(name.to_owned(), value.to_string());
                set("ETO_LOCAL_RANK", local);
                set("ETO_LOCAL_WORLD_SIZE", count);
                if count == 1 {
                    return env;
                }
                let rank = before.saturating_add(local);
                set("ETO_PROCESS_RANK", rank);
                set("ETO_PROCESS_COUNT", total);
                match framework {
                    FrameworkKind::PyTorch => {
                        set("RANK", rank);
                        set("WORLD_SIZE", total);
                        set("LOCAL_RANK", local);
                        set("LOCAL_WORLD_SIZE", count);
                        set("GROUP_RANK", u32::try_from(self.rank).unwrap_or(u32::MAX));
                    }
                    FrameworkKind::Jax => {
                        for name in ["JAX_PROCESS_ID", "PROCESS_ID"] {
                            set(name, rank);
                        }
                        for name in ["JAX_NUM_PROCESSES", "NUM_PROCESSES"] {
                            set(name, total);
                        }
                        set("JAX_LOCAL_DEVICE_IDS", local);
                    }
                    FrameworkKind::TensorFlow | FrameworkKind::Custom => {}
                }
                env
            })
            .collect()
    }
}

/// Whether a command starts the processes of a member by itself: `torchrun`, or `torch.distributed.run` (and the older
/// `launch`) as a module, also inside a shell's command line. Only what comes before the script's name counts.
pub fn is_launcher(command: &[String]) -> bool {
    let words = || command.iter().flat_map(|argument| argument.split_whitespace());
    let is_script = |word: &str| word.rsplit_once('.').is_some_and(|(_, suffix)| suffix == "py");
    let modules = ["torch.distributed.run", "torch.distributed.launch"];
    let mut before = "";
    for word in words().take_while(|word| !is_script(word)) {
        let name = word.rsplit('/').next().unwrap_or(word);
        if name == "torchrun" || (before == "-m" && modules.contains(&word)) {
            return true;
        }
        before = word;
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Candidate, Member, Order, Ports, Round};

    fn launch(framework: FrameworkKind, processes: &[u32], rank: usize) -> Launch {
        let members = (0u32..).zip(processes).map(|(index, n)| Candidate {
            member: Member { index, address: format!("h{index}"), uid: None, processes: *n },
            healthy_since_ms: None,
        });
        let round = Round::plan("ns/j", "u", 1, members.collect(), Ports::default()).unwrap();
        let env = BTreeMap::from([("RANK".to_owned(), "9".to_owned()), ("EXTRA".to_owned(), "1".to_owned())]);
        let assignment = Assignment { round, order: Order::Run, framework, grace_ms: 1000, env, why: String::new() };
        Launch { assignment, rank }
    }

    #[test]
    fn each_process_of_torch_gets_its_own_ranks() {
        let all = launch(FrameworkKind::PyTorch, &[2, 4], 1).environments(false);
        let ranks: Vec<_> = all.iter().map(|e| (e["RANK"].as_str(), e["LOCAL_RANK"].as_str())).collect();
        assert_eq!(ranks, [("2", "0"), ("3", "1"), ("4", "2"), ("5", "3")]);
        assert!(all.iter().all(|e| e["WORLD_SIZE"] == "6" && e["LOCAL_WORLD_SIZE"] == "4" && e["EXTRA"] == "1"));
    }

    #[test]
    fn a_launcher_is_started_once_and_with_the_node_s_rank() {
        let all = launch(FrameworkKind::PyTorch, &[2, 4], 1).environments(true);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0]["PET_NODE_RANK"].as_str(), all[0]["PET_NPROC_PER_NODE"].as_str()), ("1", "4"));
        assert!(!all[0].contains_key("LOCAL_RANK"));
    }

    #[test]
    fn the_round_wins_over_the_assignment_s_variables() {
        assert_eq!(launch(FrameworkKind::PyTorch, &[1, 1], 1).environments(false)[0]["RANK"], "1");
    }

    #[test]
    fn jax_counts_processes_and_tensorflow_has_one() {
        let jax = launch(FrameworkKind::Jax, &[2, 2], 1).environments(false);
        let ids: Vec<_> = jax.iter().map(|e| e["JAX_PROCESS_ID"].as_str()).collect();
        assert_eq!((ids.as_slice(), jax[0]["NUM_PROCESSES"].as_str()), (&["2", "3"][..], "4"));
        assert_eq!(launch(FrameworkKind::TensorFlow, &[2, 2], 1).environments(false).len(), 1);
    }

    #[test]
    fn launchers_are_known_by_their_command() {
        let is = |line: &[&str]| is_launcher(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert!(is(&["torchrun", "train.py"]));
        assert!(is(&["/opt/venv/bin/torchrun", "--nproc-per-node=2", "train.py"]));
        assert!(is(&["python3", "-u", "-m", "torch.distributed.run", "train.py"]));
        assert!(is(&["sh", "-c", "cd /w && exec torchrun --nnodes=2 train.py"]));
        assert!(!is(&["python", "train.py", "--launcher", "torchrun"]));
        assert!(!is(&["python", "-m", "trainer"]));
        assert!(!is(&[]));
    }
}
