//! The certificate that agents are shown, renewed in time.
//!
//! Each replica has one of its own, in memory alone, from the authority that all replicas share. Pods trust the authority,
//! which stays: they notice nothing of a renewal. Connections that are open go on; later ones are shown the new one.

use std::time::Duration;

use eto_gateway::{Authority, Identity, IdentityError, Server};
use tokio::sync::watch;

use crate::context::now;

/// How long a certificate of the gateway is good for.
const DAYS: u32 = 90;
/// It is renewed when it is good for less than this, in seconds: a third of its time, so that a replica whose clock was
/// wrong for weeks is in time too.
const LEFT_S: u64 = 30 * 86_400;
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(3_600);

/// The certificate of a replica, and what it is renewed with.
#[derive(Debug)]
pub struct Certificate {
    authority: Authority,
    /// What agents call the gateway.
    host: String,
    shown: Identity,
}

impl Certificate {
    /// A new one.
    pub fn issue(authority: Authority, host: String) -> Result<Self, IdentityError> {
        let shown = authority.issue(std::slice::from_ref(&host), DAYS)?;
        Ok(Certificate { authority, host, shown })
    }

    /// What agents are shown.
    pub fn shown(&self) -> &Identity {
        &self.shown
    }

    /// The next one, where this will not be good for long after `at_s` (seconds since the Unix epoch).
    fn next(&self, at_s: u64) -> Option<Result<Identity, IdentityError>> {
        let good = self.shown.is_good_for(&self.host, at_s.saturating_add(LEFT_S));
        (!good).then(|| self.authority.issue(std::slice::from_ref(&self.host), DAYS))
    }

    /// Has the server show a new one whenever it is time for that, until `stop`.
    pub async fn keep(mut self, server: &Server, mut stop: watch::Receiver<bool>) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                _ = stop.wait_for(|s| *s) => return,
            }
            let Some(next) = self.next(now().0 / 1_000) else { continue };
            match next.and_then(|next| server.swap_identity(&next).map(|()| next)) {
                Ok(next) => {
                    self.shown = next;
                    tracing::info!(days = DAYS, "the gateway's certificate was renewed");
                }
                Err(error) => tracing::error!(%error, "the gateway's certificate was not renewed; it is tried again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_time_by_the_same_authority() {
        let authority = Authority::generate(3650).unwrap();
        let mut certificate = Certificate::issue(authority.clone(), "gateway.ns.svc".to_owned()).unwrap();
        let today = now().0 / 1_000;
        assert!(certificate.next(today).is_none() && certificate.next(today + 59 * DAY).is_none());
        let next = certificate.next(today + 61 * DAY).unwrap().unwrap();
        // Who was given the authority's certificate with its pod takes the new one too.
        assert_eq!(next.ca_pem, authority.cert_pem);
        assert!(next.cert_pem != certificate.shown().cert_pem && next.is_good_for("gateway.ns.svc", today + 89 * DAY));
        certificate.shown = next;
        assert!(certificate.next(today).is_none());
    }

    #[test]
    fn one_that_is_not_good_yet_is_made_anew() {
        let certificate = Certificate::issue(Authority::generate(1).unwrap(), "10.0.0.1".to_owned()).unwrap();
        assert!(certificate.next((now().0 / 1_000).saturating_sub(60 * DAY)).is_some());
    }
}
