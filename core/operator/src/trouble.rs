//! What went wrong between this program and the API server, in one line: what happened and what mends it.

use std::error::Error;

use kube::runtime::watcher;

/// Longest text taken from an answer: a proxy's page is not worth more.
const LONGEST: usize = 300;

/// An error of a request.
pub fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => of_status(status.code, &status.reason, &status.message),
        kube::Error::SerdeError(_) => {
            format!("what answered does not speak the Kubernetes API; check the server's address ({error})")
        }
        other => innermost(other),
    }
}

/// An error of a watch.
pub fn of_watch(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(e) | watcher::Error::WatchStartFailed(e) | watcher::Error::WatchFailed(e) => {
            of_request(e)
        }
        watcher::Error::WatchError(status) => of_status(status.code, &status.reason, &status.message),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

fn of_status(code: u16, reason: &str, message: &str) -> String {
    let message: String = message.chars().take(LONGEST).collect();
    let mend = match code {
        401 => "; check the credentials (service account or kubeconfig)",
        403 => "; grant it, as the roles in deploy/ do",
        404 => "; is the CRD applied (deploy/crds.yaml)?",
        _ => "",
    };
    format!("{code} {reason}: {message}{mend}")
}

/// The innermost cause says what happened (`Connection refused`); the outer ones only who noticed.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let outer = error.to_string();
    let (mut why, mut source) = (outer.clone(), error.source());
    while let Some(cause) = source {
        why = cause.to_string();
        // An I/O error carries its cause inside instead of as its source.
        source = match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => cause.source(),
        };
    }
    if outer.contains(&why) { outer } else { format!("{outer}: {why}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_says_what_mends_it_and_a_page_is_cut() {
        let said = |code: u16, reason: &str, message: &str| {
            let status = Status { code, reason: reason.to_owned(), message: message.to_owned(), ..Status::default() };
            of_watch(&watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))))
        };
        let forbidden = said(403, "Forbidden", "pods is forbidden");
        assert!(forbidden.starts_with("403 Forbidden: pods is forbidden; grant it"), "{forbidden}");
        assert!(said(401, "Unauthorized", "Unauthorized").contains("credentials"));
        assert!(said(502, "", &"<html>".repeat(10_000)).len() < 400);
    }

    #[test]
    fn the_innermost_cause_is_said() {
        let refused = std::io::Error::other(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let said = of_request(&kube::Error::ReadEvents(refused));
        assert!(said.contains("connection refused"), "{said}");
        let html = serde_json::from_str::<u8>("<html>").unwrap_err();
        let said = of_request(&kube::Error::SerdeError(html));
        assert!(said.contains("does not speak the Kubernetes API"), "{said}");
    }
}
