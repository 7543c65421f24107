//! The signal that asks a container to stop, where that is not SIGTERM. Runtimes send it to the container's first process,
//! which is the agent: it has to know what the script waits for.

use k8s_openapi::api::core::v1::Container;

use crate::image::ImageConfig;

/// Those that an agent can take, with their numbers on Linux.
const KNOWN: [(&str, &str); 7] = [
    ("SIGHUP", "1"),
    ("SIGINT", "2"),
    ("SIGQUIT", "3"),
    ("SIGUSR1", "10"),
    ("SIGUSR2", "12"),
    ("SIGTERM", "15"),
    ("SIGWINCH", "28"),
];

/// The name of a signal that is written as `SIGINT`, `INT` or `2`, in any case; `None` for all that an agent can't take.
pub(crate) fn known(written: &str) -> Option<&'static str> {
    let upper = written.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is = |(name, number): &&(&'static str, &str)| name.strip_prefix("SIG") == Some(bare) || *number == upper;
    KNOWN.iter().find(is).map(|(name, _)| *name)
}

/// By what the script of this container is to be asked, if not by SIGTERM: the container's own word comes before its
/// image's, as in Kubernetes.
pub(super) fn signal(container: &Container, image: Option<&ImageConfig>) -> Option<&'static str> {
    let own = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref());
    let signal = match own {
        Some(own) => known(own),
        None => image.and_then(ImageConfig::stop_signal),
    };
    signal.filter(|s| *s != "SIGTERM")
}
