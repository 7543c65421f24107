//! TLS towards Prometheus: rustls with its ring provider, set up per client, so that nothing depends on a provider
//! installed for the whole process.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::SourceError;
use crate::settings::Tls;

/// The bytes of the files named in the settings.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
}

/// A client configuration for other clients of the process: trusts the authorities of this file, or the system's.
///
/// # Errors
/// The file can't be read or has no certificate; the system has no authorities.
pub fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, SourceError> {
    let read = |path: &Path| crate::files::read_file(path).map_err(|e| bad(Some(path), &e.to_string()));
    let files = TlsFiles { ca: ca_file.map(read).transpose()?, ..TlsFiles::default() };
    config(&Tls { ca_file: ca_file.map(Path::to_owned), ..Tls::default() }, &files)
}

/// A client configuration for these settings and files.
pub(crate) fn config(tls: &Tls, files: &TlsFiles) -> Result<ClientConfig, SourceError> {
    let provider = Arc::new(ring::default_provider());
    let setup = |e: rustls::Error| bad(tls.ca_file.as_deref(), &e.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(setup)?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
    } else {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(tls, files)?), provider)
            .build()
            .map_err(|e| bad(tls.ca_file.as_deref(), &e.to_string()))?;
        match &tls.server_name {
            Some(name) => {
                let name =
                    ServerName::try_from(name.clone()).map_err(|_| bad(None, "tls.server_name is not a host name"))?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(NamedServer { inner, name }))
            }
            None => builder.with_webpki_verifier(inner),
        }
    };
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(cert, tls.cert_file.as_deref())?;
    // The parser's own words are not passed on: they might quote the key.
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| bad(tls.key_file.as_deref(), "no usable PEM private key in it"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|e| bad(tls.cert_file.as_deref(), &format!("certificate and key: {e}")))
}

fn roots(tls: &Tls, files: &TlsFiles) -> Result<RootCertStore, SourceError> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &files.ca {
        for certificate in certificates(pem, tls.ca_file.as_deref())? {
            roots.add(certificate).map_err(|e| bad(tls.ca_file.as_deref(), &e.to_string()))?;
        }
        return Ok(roots);
    }
    // Those of the system that can be read; the rest of a bundle counts if one entry is odd.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(bad(None, "the system has no CA certificates: set tls.ca_file"));
    }
    Ok(roots)
}

fn certificates(pem: &[u8], path: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, SourceError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|e| bad(path, &format!("not PEM: {e}")))?;
    if found.is_empty() { Err(bad(path, "no PEM certificate in it")) } else { Ok(found) }
}

fn bad(path: Option<&Path>, why: &str) -> SourceError {
    SourceError::File { path: path.unwrap_or(Path::new("prometheus.tls")).to_owned(), why: why.to_owned() }
}

/// Checks the server's certificate against a name from the settings instead of the URL's host.
#[derive(Debug)]
struct NamedServer {
    inner: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for NamedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner.verify_server_cert(end_entity, intermediates, &self.name, ocsp, now)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// `insecure_skip_verify`: any certificate, though the handshake's signature still has to be the certificate's.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
