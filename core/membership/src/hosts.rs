use crate::Round;

/// The members as a hostfile, in rank order, `ADDRESS slots=PROCESSES` a line: what `mpirun --hostfile`, `horovodrun
/// --hostfile` and the launcher of `DeepSpeed` read. An agent keeps it in the file that `ETO_HOSTFILE` names and replaces it
/// whole with each round.
pub fn hostfile(round: &Round) -> String {
    lines(round, " slots=")
}

/// The members as a discovery script prints them, `ADDRESS:PROCESSES` a line: `horovodrun --host-discovery-script`.
pub fn discovered_hosts(round: &Round) -> String {
    lines(round, ":")
}

fn lines(round: &Round, between: &str) -> String {
    round
        .members
        .iter()
        .fold(String::new(), |text, m| text + &format!("{}{between}{}\n", m.address, m.processes.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;

    #[test]
    fn a_line_for_each_member_in_rank_order() {
        let member =
            |index, address: &str, processes| Member { index, address: address.to_owned(), uid: None, processes };
        let round = Round {
            job: "a/b".to_owned(),
            generation: 2,
            id: "u-2".to_owned(),
            members: vec![member(1, "10.0.0.2", 4), member(0, "10.0.0.1", 0)],
            coordinator: 0,
            port: 29502,
        };
        assert_eq!(hostfile(&round), "10.0.0.2 slots=4\n10.0.0.1 slots=1\n");
        assert_eq!(discovered_hosts(&round), "10.0.0.2:4\n10.0.0.1:1\n");
    }
}
