use crate::{Member, Round};

/// Longest list of addresses in one environment variable, in bytes. Linux starts no process with a variable of more than
/// 128 KiB, and the list is in the object of each pod that is made for a round, once for each of its containers.
pub const MAX_HOSTS_BYTES: usize = 32 * 1024;

/// The variable that names all members in rank order. `None`: the list is too long, and has no pattern.
pub(crate) fn host_list(round: &Round) -> Option<(&'static str, String)> {
    let bytes: usize = round.members.iter().map(|m| m.address.len() + 1).sum();
    if bytes > MAX_HOSTS_BYTES {
        return pattern(&round.members).filter(|p| p.len() <= MAX_HOSTS_BYTES).map(|p| ("ETO_HOST_PATTERN", p));
    }
    let hosts: Vec<&str> = round.members.iter().map(|m| m.address.as_str()).collect();
    Some(("ETO_HOSTS", hosts.join(",")))
}

/// Addresses that differ by the members' indexes alone, in the notation that Slurm has for lists of hosts:
/// `demo-worker-[0-9,11-20].demo`. Indexes are in rank order.
fn pattern(members: &[Member]) -> Option<String> {
    let first = members.first()?;
    let (host, after) = first.address.split_at(first.address.find('.').unwrap_or(first.address.len()));
    let before = host.strip_suffix(&first.index.to_string())?;
    let fits = |m: &Member| {
        let middle = m.address.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        middle.is_some_and(|index| index == m.index.to_string())
    };
    if !members.iter().all(fits) {
        return None;
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for m in members {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(m.index) => *last = m.index,
            _ => ranges.push((m.index, m.index)),
        }
    }
    let text = |(from, to): (u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    let ranges: Vec<String> = ranges.into_iter().map(text).collect();
    Some(format!("{before}[{}]{after}", ranges.join(",")))
}

/// The workers as a hostfile, in rank order, `ADDRESS slots=PROCESSES` a line: what `mpirun --hostfile`, `horovodrun
/// --hostfile` and the launcher of `DeepSpeed` read. An agent keeps it in the file that `ETO_HOSTFILE` names and replaces it
/// whole with each round.
pub fn hostfile(round: &Round) -> String {
    lines(round, " slots=")
}

/// The workers as a discovery script prints them, `ADDRESS:PROCESSES` a line: `horovodrun --host-discovery-script`.
pub fn discovered_hosts(round: &Round) -> String {
    lines(round, ":")
}

fn lines(round: &Round, between: &str) -> String {
    let line = |m: &Member| format!("{}{between}{}\n", m.address, m.processes.max(1));
    round.members.iter().filter(|m| round.types.is_worker(m.index)).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReplicaType, ReplicaTypes};

    fn wide(count: u32, address: impl Fn(u32) -> String) -> Round {
        // One index is free, as after a loss.
        let member = |index| Member { index, address: address(index), uid: None, processes: 1 };
        let members = (0..=count).filter(|i| *i != 7).map(member).collect();
        let types = ReplicaTypes::default();
        Round { job: "a/b".into(), generation: 1, id: "u-1".into(), members, coordinator: 0, port: 29501, types }
    }

    #[test]
    fn a_list_that_is_too_long_for_a_variable_is_a_pattern() {
        let name = |index| format!("demo-1-worker-{index}.demo-1.team-a.svc");
        let (variable, few) = host_list(&wide(10, name)).unwrap_or_default();
        assert_eq!((variable, few.split(',').count()), ("ETO_HOSTS", 10));
        let many = host_list(&wide(crate::MAX_MEMBERS, name));
        assert_eq!(many, Some(("ETO_HOST_PATTERN", "demo-1-worker-[0-6,8-4096].demo-1.team-a.svc".to_owned())));
        let ip = |index| format!("2001:db8:1234:5678:9abc:def0:{:04x}:{:04x}", index >> 16, index & 0xffff);
        assert_eq!(host_list(&wide(crate::MAX_MEMBERS, ip)), None);
        assert_eq!(host_list(&wide(crate::MAX_MEMBERS, |_| "one-long-name-of-a-host".to_owned())), None);
    }

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
            types: ReplicaTypes::default(),
        };
        assert_eq!(hostfile(&round), "10.0.0.2 slots=4\n10.0.0.1 slots=1\n");
        assert_eq!(discovered_hosts(&round), "10.0.0.2:4\n10.0.0.1:1\n");
        let types = ReplicaTypes(vec![ReplicaType { name: "ps".to_owned(), replicas: 1 }]);
        assert_eq!(hostfile(&round.with_types(&types)), "10.0.0.2 slots=4\n", "nobody is started on the others");
    }
}
