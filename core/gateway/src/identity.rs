//! Who the gateway says it is: its certificate, and the authority that agents trust.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};

/// Clocks of nodes may be behind by this much.
const SKEW: Duration = Duration::days(1);
const AUTHORITY: &str = "elastic-training-gateway";

/// Why a certificate can't be made or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("certificate of the gateway: {0}")]
pub struct IdentityError(String);

/// A certificate authority of our own. Agents are given its certificate when their pod is made, so that it outlives
/// every certificate of the gateway; its key is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    /// Its certificate, PEM: what agents trust.
    pub cert_pem: String,
    /// Its private key, PEM.
    pub key_pem: String,
}

/// What the server shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The authority that its certificate is of, PEM.
    pub ca_pem: String,
    /// The certificate with its chain, PEM.
    pub cert_pem: String,
    /// Its private key, PEM.
    pub key_pem: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("ca_pem", &self.ca_pem)
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new one that is good for so many days.
    pub fn generate(days: u32) -> Result<Self, IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = params(Vec::new(), days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key)?;
        Ok(Authority { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }

    /// A certificate for a server of these names (or addresses) that is good for so many days.
    pub fn issue(&self, names: &[String], days: u32) -> Result<Identity, IdentityError> {
        self.make(names, days, vec![ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// A certificate for members of etcd of these names, who are servers and clients of each other.
    pub fn issue_peer(&self, names: &[String], days: u32) -> Result<Identity, IdentityError> {
        self.make(names, days, vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth])
    }

    /// A certificate for a client of this name. The name is not one that can be looked up: etcd would do so, and want to
    /// find the client's address there.
    pub fn issue_client(&self, name: &str, days: u32) -> Result<Identity, IdentityError> {
        let mut params = params(Vec::new(), days)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(params, days, vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    fn make(&self, names: &[String], days: u32, uses: Vec<ExtendedKeyUsagePurpose>) -> Result<Identity, IdentityError> {
        if names.is_empty() {
            return Err(IdentityError("it needs a name".to_owned()));
        }
        let mut params = params(names.to_vec(), days)?;
        params.distinguished_name.push(DnType::CommonName, names[0].clone());
        self.sign(params, days, uses)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        days: u32,
        uses: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<Identity, IdentityError> {
        // The issuer is told by its name and key, which are all that the authority's certificate says of it.
        let key =
            KeyPair::from_pem(&self.key_pem).map_err(|_| IdentityError("no PEM key of an authority".to_owned()))?;
        let issuer = Issuer::new(self::params(Vec::new(), days)?, key);
        let key = KeyPair::generate()?;
        params.extended_key_usages = uses;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let cert = params.signed_by(&key, &issuer)?;
        Ok(Identity { ca_pem: self.cert_pem.clone(), cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }
}

impl Identity {
    /// One with an authority of its own that nobody keeps the key of.
    pub fn generate(names: &[String], days: u32) -> Result<Self, IdentityError> {
        Authority::generate(days)?.issue(names, days)
    }

    /// Whether who trusts the authority takes the certificate for a server of this name, at a moment given in seconds
    /// since the Unix epoch: asked some weeks ahead, it says when to renew.
    pub fn is_good_for(&self, name: &str, at_s: u64) -> bool {
        let Ok(chain) = certificates(&self.cert_pem) else { return false };
        let (Some((leaf, rest)), Ok(name)) = (chain.split_first(), ServerName::try_from(name)) else { return false };
        let mut roots = RootCertStore::empty();
        for ca in certificates(&self.ca_pem).unwrap_or_default() {
            if roots.add(ca).is_err() {
                return false;
            }
        }
        let provider = Arc::new(ring::default_provider());
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().is_ok_and(|verifier| {
            let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at_s));
            verifier.verify_server_cert(leaf, rest, &name, &[], at).is_ok()
        })
    }

    fn certified(&self) -> Result<CertifiedKey, IdentityError> {
        // The parser's own words are not passed on: they might quote the key.
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|_| IdentityError("no usable PEM private key".to_owned()))?;
        CertifiedKey::from_der(certificates(&self.cert_pem)?, key, &ring::default_provider())
            .map_err(|e| IdentityError(format!("certificate and key: {e}")))
    }
}

/// What names and lasting have to do with, for authority and server alike.
fn params(names: Vec<String>, days: u32) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    if params.subject_alt_names.is_empty() {
        params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    }
    let now = OffsetDateTime::now_utc();
    params.not_before = now - SKEW;
    params.not_after = now + Duration::days(i64::from(days));
    Ok(params)
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        IdentityError(error.to_string())
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| IdentityError(format!("not PEM: {e}")))?;
    if found.is_empty() { Err(IdentityError("no PEM certificate in it".to_owned())) } else { Ok(found) }
}

/// The identity in use; another can be put in its place, for connections from then on.
#[derive(Debug)]
pub(crate) struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    pub(crate) fn new(identity: &Identity) -> Result<Self, IdentityError> {
        Ok(Shown(RwLock::new(Arc::new(identity.certified()?))))
    }

    pub(crate) fn swap(&self, identity: &Identity) -> Result<(), IdentityError> {
        let next = Arc::new(identity.certified()?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DAY: u64 = 86_400;

    fn now() -> u64 {
        u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap()
    }

    #[test]
    fn certificates_are_good_for_their_names_and_days() {
        let names = ["gateway.ns.svc".to_owned(), "127.0.0.1".to_owned()];
        let identity = Authority::generate(3650).unwrap().issue(&names, 90).unwrap();
        assert!(identity.is_good_for("gateway.ns.svc", now()));
        assert!(identity.is_good_for("127.0.0.1", now()));
        assert!(!identity.is_good_for("other.ns.svc", now()));
        assert!(!identity.is_good_for("gateway.ns.svc", now() + 91 * DAY));
        assert!(!identity.is_good_for("gateway.ns.svc", now() - 2 * DAY));
        let other = Authority::generate(3650).unwrap().cert_pem;
        assert!(!Identity { ca_pem: other, ..identity }.is_good_for("gateway.ns.svc", now()));
    }

    #[test]
    fn a_renewed_certificate_is_of_the_same_authority() {
        let authority = Authority::generate(3650).unwrap();
        let again = Authority { ..authority.clone() }.issue(&["a".to_owned()], 1).unwrap();
        assert_eq!(again.ca_pem, authority.cert_pem);
        assert!(again.is_good_for("a", now()));
    }

    /// What a server that trusts the authority's clients says of this one.
    fn taken_as_client(authority: &Authority, client: &Identity) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(&authority.cert_pem).unwrap().remove(0)).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let leaf = certificates(&client.cert_pem).unwrap().remove(0);
        verifier
            .verify_client_cert(&leaf, &[], UnixTime::since_unix_epoch(std::time::Duration::from_secs(now())))
            .is_ok()
    }

    #[test]
    fn members_of_etcd_are_servers_and_clients_and_we_are_a_client_alone() {
        let authority = Authority::generate(3650).unwrap();
        let names = ["etcd-0.etcd.ns.svc".to_owned()];
        let peer = authority.issue_peer(&names, 10).unwrap();
        assert!(peer.is_good_for("etcd-0.etcd.ns.svc", now()) && taken_as_client(&authority, &peer));
        let client = authority.issue_client("operator", 10).unwrap();
        assert!(taken_as_client(&authority, &client) && !client.is_good_for("operator", now()));
        assert!(!taken_as_client(&authority, &authority.issue(&names, 10).unwrap()), "the gateway is no client");
        assert!(!taken_as_client(&Authority::generate(10).unwrap(), &client), "of another authority");
    }

    #[test]
    fn what_is_no_certificate_is_refused_without_its_key_in_the_message() {
        let good = Identity::generate(&["a".to_owned()], 1).unwrap();
        let bad = Identity { key_pem: "secret".into(), ..good.clone() };
        let why = bad.certified().unwrap_err().to_string();
        assert!(why.contains("private key") && !why.contains("secret"), "{why}");
        let other = Identity::generate(&["a".to_owned()], 1).unwrap();
        assert!(Identity { key_pem: other.key_pem, ..good.clone() }.certified().is_err(), "not this one's key");
        assert!(Identity { cert_pem: String::new(), ..good.clone() }.certified().is_err());
        assert!(!format!("{good:?}").contains("PRIVATE"));
        assert!(Authority::generate(1).unwrap().issue(&[], 1).is_err());
    }
}
