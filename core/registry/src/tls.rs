//! TLS towards registries: rustls with its ring provider, set up for this client alone.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::SetupError;

/// Trusts the system's authorities and those of `ca`.
pub(crate) fn config(ca: Option<&[u8]>) -> Result<ClientConfig, SetupError> {
    let bad = |e: &dyn std::fmt::Display| SetupError::Authorities(e.to_string());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(pem) = ca {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|e| bad(&e))?).map_err(|e| bad(&e))?;
        }
        if roots.len() == before {
            return Err(bad(&"there is no PEM certificate in the file"));
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| SetupError::Client(e.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
