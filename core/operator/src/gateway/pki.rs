//! The certificates of the gateway and of the etcd that comes with the chart: one small authority makes both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// How long certificates hold. Pods carry the authority's for as long as they live, so it outlives them by far.
const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Clocks of nodes may be behind by this much.
const SKEW: Duration = Duration::from_secs(3600);
const AUTHORITY: &str = "elastic-training";

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(the key is not shown)")
    }
}

/// What a certificate is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Server,
    Client,
    /// Members of etcd speak to each other with one certificate.
    Both,
}

/// Why a certificate was not made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("a certificate can't be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the key of the authority can't be read: {0}")]
    Key(rcgen::Error),
}

/// A new authority.
pub fn authority() -> Result<Pair, PkiError> {
    let key = KeyPair::generate()?;
    let certificate = authority_params().self_signed(&key)?.pem();
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// A certificate for these hosts (names or addresses), made by that authority.
pub fn issue(authority: &Pair, hosts: &[String], of: Use) -> Result<Pair, PkiError> {
    let signer = KeyPair::from_pem(&authority.key).map_err(PkiError::Key)?;
    // The issuer's name and key are all that goes into a certificate; both are known without reading its own back.
    let issuer = Issuer::new(authority_params(), signer);
    let mut params = CertificateParams::new(hosts.to_vec())?;
    params.distinguished_name = named(hosts.first().map_or(AUTHORITY, String::as_str));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match of {
        Use::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        Use::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.use_authority_key_identifier_extension = true;
    hold(&mut params);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Pair { certificate, key: key.serialize_pem() })
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    hold(&mut params);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut of = DistinguishedName::new();
    // A common name has 64 characters at most; what counts are the alternative names.
    of.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    of
}

fn hold(params: &mut CertificateParams) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(SKEW);
    params.not_after = epoch + now + LIFE;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    /// A TLS handshake in memory: what the client says of the server.
    fn handshake(trusted: &Pair, server: &Pair, host: &str) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.certificate.as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let chain = vec![CertificateDer::from_pem_slice(server.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        let mut server = ServerConnection::new(Arc::new(config))?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn what_the_authority_made_is_trusted_for_its_hosts_alone() {
        let ours = authority().unwrap();
        let hosts = ["gateway.elastic-system.svc".to_owned(), "10.0.0.1".to_owned()];
        let server = issue(&ours, &hosts, Use::Server).unwrap();
        handshake(&ours, &server, "gateway.elastic-system.svc").unwrap();
        handshake(&ours, &server, "10.0.0.1").unwrap();
        assert!(handshake(&ours, &server, "other.elastic-system.svc").is_err());
        assert!(handshake(&authority().unwrap(), &server, "10.0.0.1").is_err(), "another authority of the same name");
    }

    #[test]
    fn a_key_is_not_shown() {
        let pair = authority().unwrap();
        assert!(!format!("{pair:?}").contains("PRIVATE"));
    }
}
