//! The signal that asks a container to stop, where that is not SIGTERM. Runtimes send it to the container's first process,
//! which is the agent: it has to know what the script waits for.

use eto_membership::{STOP_SIGNALS, stop_signal};
use k8s_openapi::api::core::v1::Container;

use crate::SpecProblems;
use crate::image::ImageConfig;

/// The name of a signal that an agent can take, however it is written.
pub(crate) fn known(written: &str) -> Option<&'static str> {
    stop_signal(written).map(|(name, _)| name)
}

/// By what the script of this container is to be asked, if not by SIGTERM: the container's own word comes before its
/// image's, as in Kubernetes.
pub(super) fn signal(container: &Container, image: Option<&ImageConfig>) -> Option<&'static str> {
    let signal = match own(container) {
        Some(own) => known(own),
        None => image.and_then(ImageConfig::stop_signal),
    };
    signal.filter(|s| *s != "SIGTERM")
}

/// Refuses a signal that the agent can't take: the script would never be asked, and lose what it did since its last
/// checkpoint. `path` is that of the container.
pub(super) fn check(path: &str, container: &Container, problems: &mut SpecProblems) {
    let Some(own) = own(container).filter(|own| known(own).is_none()) else { return };
    let names = STOP_SIGNALS.map(|(name, _)| name).join(", ");
    problems.add(
        format!("{path}.lifecycle.stopSignal"),
        format!("is {own:?}, which the agent in the pod can't take; choose one of {names}, or set spec.elasticity.agent to \"Off\""),
    );
}

fn own(container: &Container) -> Option<&str> {
    container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref())
}
