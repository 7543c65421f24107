//! What is started for a round.

use std::collections::BTreeMap;

use crate::env::run_id;
use crate::{Assignment, Native, member_env, native_env, process_env};

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

    /// The run that the round is a part of, where members change without being started anew.
    pub fn native(&self) -> Option<Native> {
        self.assignment.native
    }

    /// Whether the store of a run is served here.
    pub fn serves_store(&self) -> bool {
        self.native().is_some_and(|n| !n.alone) && self.rank == self.assignment.round.coordinator
    }

    /// Variables of each process to start, at least one. `launcher`: the command starts the processes of a member
    /// itself (see [`super::CommandKind`]), so it is started once.
    ///
    /// Later wins: the assignment's own variables, then the round's: those of the process ([`process_env`]), or of the
    /// member for a launcher ([`member_env`]), which has `ETO_LOCAL_RANK` 0 of `ETO_LOCAL_WORLD_SIZE` 1, or of the run
    /// for one that changes its members by itself ([`native_env`]).
    pub fn environments(&self, launcher: bool) -> Vec<BTreeMap<String, String>> {
        let Assignment { round, framework, env, native, .. } = &self.assignment;
        let run = native.filter(|n| n.alone).map(|n| n.run);
        let over = |own: Vec<(String, String)>| {
            let mut env = env.clone();
            env.extend(own);
            if let Some(run) = run {
                // All processes of a run count as of one round.
                env.insert("ETO_ROUND".to_owned(), run.to_string());
                env.insert("ETO_ROUND_ID".to_owned(), run_id(&round.id, run));
            }
            env
        };
        let alone = || {
            let local = [("ETO_LOCAL_RANK", "0"), ("ETO_LOCAL_WORLD_SIZE", "1")];
            let mut own = member_env(*framework, round, self.rank);
            own.extend(local.map(|(name, value)| (name.to_owned(), value.to_owned())));
            vec![over(own)]
        };
        if launcher {
            if let Some(native) = native.as_ref().filter(|n| !n.alone) {
                return vec![over(native_env(round, self.rank, *native))];
            }
            return alone();
        }
        let here = round.members.get(self.rank).map_or(1, |m| m.processes.max(1));
        let each =
            (0..here).map(|local| process_env(*framework, round, self.rank, local)).filter(|own| !own.is_empty());
        let all: Vec<_> = each.map(over).collect();
        if all.is_empty() { alone() } else { all }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Candidate, FrameworkKind, Member, Order, Ports, Round};

    fn launch(framework: FrameworkKind, processes: &[u32], rank: usize) -> Launch {
        let members = (0u32..).zip(processes).map(|(index, n)| Candidate {
            member: Member { index, address: format!("h{index}"), uid: None, processes: *n },
            healthy_since_ms: None,
        });
        let round = Round::plan("ns/j", "u", 1, members.collect(), Ports::default()).unwrap();
        let env = BTreeMap::from([("RANK".to_owned(), "9".to_owned()), ("EXTRA".to_owned(), "1".to_owned())]);
        let assignment = Assignment { env, ..Assignment::new(round, Order::Run, framework, 1000) };
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
    fn a_launcher_of_a_run_meets_the_others_by_itself() {
        let mut launch = launch(FrameworkKind::PyTorch, &[2, 2], 1);
        launch.assignment.native = Some(Native { run: 1, min: 1, max: 4, alone: false });
        let all = launch.environments(true);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0]["PET_RDZV_BACKEND"].as_str(), all[0]["PET_NNODES"].as_str()), ("c10d", "1:4"));
        assert_eq!((all[0]["EXTRA"].as_str(), launch.serves_store()), ("1", false));
        // A command that is no launcher is started as in any round.
        assert_eq!(launch.environments(false)[0]["RANK"], "2");
        launch.rank = 0;
        assert!(launch.serves_store());
    }

    #[test]
    fn who_is_started_alone_has_the_round_that_the_run_began_with() {
        let mut launch = launch(FrameworkKind::Custom, &[1, 1, 1], 2);
        launch.assignment.round.generation = 7;
        launch.assignment.native = Some(Native { run: 3, min: 1, max: 4, alone: true });
        for launcher in [false, true] {
            let env = &launch.environments(launcher)[0];
            assert_eq!((env["ETO_ROUND"].as_str(), env["ETO_RANK"].as_str()), ("3", "2"));
            assert!(env["ETO_ROUND_ID"].ends_with("-3") && !env.contains_key("PET_RDZV_BACKEND"));
        }
        launch.rank = 0;
        assert!(!launch.serves_store(), "there is none to serve");
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
}
