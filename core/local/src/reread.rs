//! The job's file is looked at again while the job runs: what `kubectl apply` and `kubectl scale` are on a cluster.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use eto_engine::time::Time;

use crate::load::Job;
use crate::news::News;
use crate::options::{check_policy, check_template};
use crate::runner::Runner;

/// What tells one state of a file from the next: inode, size, and when it was written, in seconds and nanoseconds.
type Stamp = (u64, u64, i64, i64);

/// The file that the job was read from.
#[derive(Debug)]
pub(crate) struct JobFile {
    path: PathBuf,
    seen: Option<Stamp>,
    /// Looks in a row that found none.
    missed: u32,
}

/// What a look at the file found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Same,
    Changed,
    /// It has not been there for a while; told once until it is back.
    Gone,
}

/// Looks in a row without a file before it counts as gone: editors replace files by a rename.
const GONE: u32 = 3;

impl JobFile {
    /// As it is now. Standard input (`-`) never changes.
    pub(crate) fn new(path: &Path) -> JobFile {
        JobFile { seen: stamp(path), path: path.to_path_buf(), missed: 0 }
    }

    /// Whether it is another than at the last look. A file that is gone is no other, nor is what is no regular file: a
    /// pipe would be waited for, and with it all workers. What was read from such a thing at the start is not missed.
    fn look(&mut self) -> Look {
        if let Some(now) = stamp(&self.path) {
            self.missed = 0;
            return if self.seen.replace(now) == Some(now) { Look::Same } else { Look::Changed };
        }
        self.missed = self.missed.saturating_add(1);
        if self.missed == GONE && self.seen.is_some() { Look::Gone } else { Look::Same }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    if path == Path::new("-") {
        return None;
    }
    let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
}

/// The job that follows another: the same object of an API server with a changed spec. `None` = nothing has changed.
fn successor(old: &Job, mut new: Job) -> Result<Option<Job>, String> {
    if new.spec.key != old.spec.key {
        return Err(format!("it is now the job {}; start another `eto run` for that", new.spec.key));
    }
    if new.spec.framework != old.spec.framework {
        return Err("frameworkType can't be changed; make a new job".to_owned());
    }
    if new.spec.types != old.spec.types {
        return Err("names and numbers of replicaTypes can't be changed; make a new job".to_owned());
    }
    if new.object.spec == old.object.spec {
        return Ok(None);
    }
    let generation = old.spec.generation + 1;
    new.object.metadata.uid.clone_from(&old.object.metadata.uid);
    new.object.metadata.generation = i64::try_from(generation).ok();
    new.spec.uid.clone_from(&old.spec.uid);
    new.spec.generation = generation;
    new.spec.created = old.spec.created;
    Ok(Some(new))
}

impl Runner {
    /// Takes a changed file in. One that can't be used changes nothing, and is told.
    pub(crate) fn reread(&mut self, now: Time) {
        let next = match self.file.look() {
            Look::Same => return,
            Look::Changed => self.read_again(now),
            Look::Gone => {
                Err(format!("{} is no file any more; put it back to change the job", self.file.path.display()))
            }
        };
        let (warning, reason, message) = match next {
            Ok(None) => return,
            Ok(Some(job)) => {
                let message = format!("the job's file has changed: generation {}", job.spec.generation);
                self.job = job;
                self.tell_not_here();
                (false, "SpecChanged", message)
            }
            Err(why) => (true, "SpecRefused", format!("the job goes on as it was: {why}")),
        };
        self.display.tell(now, &News::Event { warning, reason: reason.to_owned(), message });
    }

    fn read_again(&self, now: Time) -> Result<Option<Job>, String> {
        let job = crate::load::job(&self.options.job, now).map_err(|e| e.to_string())?;
        let next = successor(&self.job, job)?;
        if let Some(job) = &next {
            check_template(job, &self.options).map_err(|e| e.to_string())?;
            check_policy(job, &self.registry, &self.options.policies).map_err(|e| e.to_string())?;
        }
        Ok(next)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;

    fn job(name: &str, spec: &str) -> Job {
        let text = format!(
            "apiVersion: elastic.ai/v1alpha1\nkind: ElasticJob\nmetadata: {{name: {name}}}\nspec: {{{spec}, template: \
             {{spec: {{containers: [{{name: t, command: [a]}}]}}}}}}\n"
        );
        crate::load::parse(Path::new("job.yaml"), &text, Time(5)).unwrap()
    }

    #[test]
    fn a_changed_spec_is_the_same_job_one_generation_later() {
        let old = job("j", "replicas: 2, maxReplicas: 4");
        assert!(successor(&old, job("j", "replicas: 2, maxReplicas: 4")).unwrap().is_none());
        let mut later = job("j", "replicas: 3, maxReplicas: 4");
        later.spec.uid = "other".to_owned();
        later.spec.created = Time(99);
        let next = successor(&old, later).unwrap().unwrap();
        assert_eq!((next.spec.replicas, next.spec.generation, next.spec.created), (3, 2, Time(5)));
        assert_eq!(next.spec.uid, old.spec.uid);
    }

    #[test]
    fn another_job_or_framework_is_refused() {
        let old = job("j", "replicas: 2");
        assert!(successor(&old, job("k", "replicas: 3")).unwrap_err().contains("default/k"));
        assert!(successor(&old, job("j", "frameworkType: JAX")).unwrap_err().contains("frameworkType"));
    }

    #[test]
    fn a_file_is_looked_at_once_for_each_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        std::fs::write(&path, "a").unwrap();
        let mut file = JobFile::new(&path);
        assert_eq!(file.look(), Look::Same);
        std::fs::write(folder.path().join("new"), "b").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!([file.look(), file.look()], [Look::Changed, Look::Same]);
        assert_eq!(JobFile::new(Path::new("-")).look(), Look::Same);
    }

    #[test]
    fn a_file_that_is_gone_for_a_while_is_told_of_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        std::fs::write(&path, "a").unwrap();
        let mut file = JobFile::new(&path);
        for _ in 0..2 {
            std::fs::remove_file(&path).unwrap();
            assert_eq!([file.look(), file.look()], [Look::Same, Look::Same], "an editor may be at work");
            assert_eq!([file.look(), file.look()], [Look::Gone, Look::Same]);
            std::fs::write(&path, "bb").unwrap();
            assert_eq!([file.look(), file.look()], [Look::Changed, Look::Same]);
        }
        let mut never = JobFile::new(Path::new("-"));
        assert!((0..9).all(|_| never.look() == Look::Same));
    }

    #[test]
    fn what_is_no_file_is_no_change_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        std::fs::write(&path, "a").unwrap();
        let mut file = JobFile::new(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(file.look(), Look::Same, "nobody writes to it: to read it is to wait for ever");
        let mut pipe = JobFile::new(&path);
        assert!((0..9).all(|_| pipe.look() == Look::Same), "a job that came through a pipe");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(file.look(), Look::Same);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "bb").unwrap();
        assert_eq!(file.look(), Look::Changed, "a file again");
    }
}
