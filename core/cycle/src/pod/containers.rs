//! What every container of a training pod gets: the environment of its round, and shared memory.

use eto_engine::job::is_default;
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, EnvVar, PodSpec, Volume, VolumeMount};

/// Logs of a training program should be there when it dies, not in a buffer; but that is only a default
/// ([`is_default`]).
const UNBUFFERED: (&str, &str) = ("PYTHONUNBUFFERED", "1");
const SHM_PATH: &str = "/dev/shm";
const SHM_VOLUME: &str = "elastic-shm";

/// Gives the containers the environment of the member and shared memory; returns the names of the user's variables
/// that had to give way.
///
/// With `keep_logs` the end of a failed container's log is in its pod's status, where the template does not say
/// otherwise.
pub(super) fn dress(spec: &mut PodSpec, env: &[(String, String)], keep_logs: bool) -> Vec<String> {
    let mut overridden = Vec::new();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        set_env(container, env, &mut overridden);
        if keep_logs {
            container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
        }
    }
    shared_memory(spec);
    overridden.sort();
    overridden.dedup();
    overridden
}

/// The round's variables come first, so that the user's own can refer to them as `$(RANK)`.
fn set_env(container: &mut Container, env: &[(String, String)], overridden: &mut Vec<String>) {
    let gives_way = |name: &str| is_default(name) && container.env.iter().flatten().any(|e| e.name == name);
    let ours = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .chain(Some(UNBUFFERED).filter(|(ours, _)| !env.iter().any(|(name, _)| name == ours)))
        .filter(|(name, _)| !gives_way(name))
        .map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None })
        .collect();
    put_first(container, ours, overridden);
}

/// Sets these variables before the user's own; the names of those of his that had to give way are added to
/// `overridden`.
pub(super) fn put_first(container: &mut Container, ours: Vec<EnvVar>, overridden: &mut Vec<String>) {
    let own = container.env.take().unwrap_or_default();
    let mut all = ours;
    let count = all.len();
    for e in own {
        match all.iter().take(count).find(|o| o.name == e.name) {
            None => all.push(e),
            // One that says the same (such as the number of processes, which is read from it) has lost nothing.
            Some(o) if e.value.is_some() && o.value == e.value => {}
            Some(_) => overridden.push(e.name),
        }
    }
    container.env = Some(all);
}

/// Data loaders pass batches through `/dev/shm`, and a container's default of 64 MiB is the most common first error.
/// There is no size limit of its own: what is written counts against the pod's memory limit, which bounds it.
fn shared_memory(spec: &mut PodSpec) {
    let mounted =
        |c: &Container| c.volume_mounts.iter().flatten().any(|m| m.mount_path.trim_end_matches('/') == SHM_PATH);
    let mut added = false;
    for container in spec.containers.iter_mut().filter(|c| !mounted(c)) {
        container.volume_mounts.get_or_insert_default().push(VolumeMount {
            name: SHM_VOLUME.to_string(),
            mount_path: SHM_PATH.to_string(),
            ..VolumeMount::default()
        });
        added = true;
    }
    if added && !spec.volumes.iter().flatten().any(|v| v.name == SHM_VOLUME) {
        spec.volumes.get_or_insert_default().push(Volume {
            name: SHM_VOLUME.to_string(),
            empty_dir: Some(EmptyDirVolumeSource { medium: Some("Memory".to_string()), size_limit: None }),
            ..Volume::default()
        });
    }
}
