//! Where things are in etcd. The version of the layout is the second part of every key.

/// The keys of one installation.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    root: String,
}

/// What a key below [`Keys::jobs`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Assignment { job_uid: &'a str },
    Member { job_uid: &'a str, pod_uid: &'a str },
}

impl Key<'_> {
    pub(crate) fn job_uid(&self) -> &str {
        match self {
            Key::Assignment { job_uid } | Key::Member { job_uid, .. } => job_uid,
        }
    }
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Keys { root: format!("{prefix}/v1/") }
    }

    /// Says who leads; the fence of all assignments.
    pub(crate) fn leader(&self) -> String {
        format!("{}leader", self.root)
    }

    /// What the keys of all jobs begin with.
    pub(crate) fn jobs(&self) -> String {
        format!("{}jobs/", self.root)
    }

    /// What the keys of a job begin with.
    pub(crate) fn job(&self, job_uid: &str) -> String {
        format!("{}jobs/{job_uid}/", self.root)
    }

    pub(crate) fn assignment(&self, job_uid: &str) -> String {
        format!("{}jobs/{job_uid}/assignment", self.root)
    }

    pub(crate) fn member(&self, job_uid: &str, pod_uid: &str) -> String {
        format!("{}jobs/{job_uid}/members/{pod_uid}", self.root)
    }

    /// What a key is about; `None` for one that is not ours or of a later layout.
    pub(crate) fn parse<'a>(&self, key: &'a [u8]) -> Option<Key<'a>> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?.strip_prefix("jobs/")?;
        let (job_uid, rest) = rest.split_once('/')?;
        if rest == "assignment" {
            return Some(Key::Assignment { job_uid });
        }
        let pod_uid = rest.strip_prefix("members/").filter(|uid| is_uid(uid))?;
        Some(Key::Member { job_uid, pod_uid })
    }
}

/// Whether this can be a UID: it becomes a part of keys, where a slash would be another key. Those of Kubernetes are
/// UUIDs.
pub(crate) fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.len() <= 128 && uid.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// The first key after all that begin with this one.
pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keys = Keys::new("/elastic-training");
        assert_eq!(keys.leader(), "/elastic-training/v1/leader");
        let assignment = keys.assignment("j-1");
        assert_eq!(assignment, "/elastic-training/v1/jobs/j-1/assignment");
        assert_eq!(keys.parse(assignment.as_bytes()), Some(Key::Assignment { job_uid: "j-1" }));
        let member = keys.member("j-1", "p-2");
        assert_eq!(keys.parse(member.as_bytes()), Some(Key::Member { job_uid: "j-1", pod_uid: "p-2" }));
        for other in
            ["/elastic-training/v1/leader", "/x/v1/jobs/j/assignment", "/elastic-training/v2/jobs/j/assignment"]
        {
            assert_eq!(keys.parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(keys.parse(b"/elastic-training/v1/jobs/j/members/a/b"), None);
        assert_eq!(keys.parse(b"/elastic-training/v1/jobs/j/members/"), None);
        assert_eq!(keys.parse(&[0xff, 0xfe]), None);
    }

    #[test]
    fn a_uid_is_no_path() {
        for (uid, good) in [("3f0e-a.b", true), ("", false), ("a/b", false), ("..\u{0}", false), ("é", false)] {
            assert_eq!(is_uid(uid), good, "{uid:?}");
        }
        assert!(!is_uid(&"a".repeat(129)));
    }

    #[test]
    fn the_end_of_a_range_is_after_all_of_it() {
        assert_eq!(after(b"a/"), b"a0".to_vec());
        assert_eq!(after(&[1, 0xff]), vec![2]);
        assert_eq!(after(&[0xff]), vec![0]); // etcd's name for "to the end"
    }
}
