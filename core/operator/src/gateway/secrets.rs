//! The Secrets that the operator makes for itself: the authority of the gateway, and the certificate of etcd.
//!
//! What is there is taken as it is and never written over, so that pods which trust it go on trusting it. Of several
//! replicas that find nothing the first one makes it, the others read it.

use std::collections::BTreeMap;

use eto_api::labels;
use eto_gateway::{Authority, Identity, IdentityError};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

/// Certificate of the authority.
const CA: &str = "ca.crt";
/// Key of the authority.
const CA_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// How long these are good for. Pods carry the authority's certificate for as long as they live. That of the gateway itself
/// is good for less, and renewed.
const DAYS: u32 = 3650;
/// What the operator is called by etcd.
const CLIENT: &str = "elastic-training-operator";

/// Why a Secret can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("Secret {name} can't be read or made: {source}")]
    Api { name: String, source: Box<kube::Error> },
    #[error("Secret {name} has no `{key}`; delete it, and it is made again")]
    Incomplete { name: String, key: &'static str },
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// The authority kept in the Secret of that name; made where there is none.
pub async fn authority(api: &Api<Secret>, name: &str) -> Result<Authority, SecretError> {
    let data = keep(api, name, || {
        let made = Authority::generate(DAYS)?;
        Ok([(CA, made.cert_pem), (CA_KEY, made.key_pem)].into())
    })
    .await?;
    Ok(Authority { cert_pem: text(&data, name, CA)?, key_pem: text(&data, name, CA_KEY)? })
}

/// What etcd is spoken to with. Its own certificate is kept in the Secret of that name; made by `authority` for these
/// hosts where there is none.
pub async fn etcd(
    api: &Api<Secret>,
    name: &str,
    authority: &Authority,
    hosts: &[String],
) -> Result<Identity, SecretError> {
    let data = keep(api, name, || {
        let made = authority.issue_peer(hosts, DAYS)?;
        Ok([(CA, made.ca_pem), (CERTIFICATE, made.cert_pem), (KEY, made.key_pem)].into())
    })
    .await?;
    let ca_pem = text(&data, name, CA)?;
    if ca_pem == authority.cert_pem {
        return Ok(authority.issue_client(CLIENT, DAYS)?);
    }
    Ok(Identity { ca_pem, cert_pem: text(&data, name, CERTIFICATE)?, key_pem: text(&data, name, KEY)? })
}

type Data = BTreeMap<String, ByteString>;

async fn keep(
    api: &Api<Secret>,
    name: &str,
    make: impl FnOnce() -> Result<BTreeMap<&'static str, String>, IdentityError>,
) -> Result<Data, SecretError> {
    let failed = |source| SecretError::Api { name: name.to_owned(), source: Box::new(source) };
    if let Some(there) = api.get_opt(name).await.map_err(failed)? {
        return Ok(there.data.unwrap_or_default());
    }
    let data: Data = make()?.into_iter().map(|(k, v)| (k.to_owned(), ByteString(v.into_bytes()))).collect();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data.clone()),
        ..Secret::default()
    };
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => {
            tracing::info!(secret = name, "made");
            Ok(data)
        }
        Err(kube::Error::Api(s)) if s.is_already_exists() => {
            Ok(api.get(name).await.map_err(failed)?.data.unwrap_or_default())
        }
        Err(e) => Err(failed(e)),
    }
}

fn text(data: &Data, name: &str, key: &'static str) -> Result<String, SecretError> {
    data.get(key)
        .and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
        .filter(|t| !t.is_empty())
        .ok_or_else(|| SecretError::Incomplete { name: name.to_owned(), key })
}

/// The hosts of these URLs, and the loopback, by which a member speaks to itself.
pub fn hosts<'a>(urls: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = urls.map(host).chain(["localhost", "127.0.0.1"].map(str::to_owned)).collect();
    all.sort();
    all.dedup();
    all
}

/// The host of a URL: what stands between `://` and the port or path.
pub fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, r)| r);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default().to_owned(),
        None => authority.rsplit_once(':').map_or(authority, |(h, _)| h).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_in_its_url() {
        for (url, want) in [
            ("https://a.b.svc:8443", "a.b.svc"),
            ("https://10.0.0.1:1/x", "10.0.0.1"),
            ("https://[fd00::1]:8443", "fd00::1"),
            ("https://plain", "plain"),
        ] {
            assert_eq!(host(url), want, "{url}");
        }
    }

    #[test]
    fn each_host_counts_once() {
        let urls = ["https://etcd-0.etcd.ns.svc:2379", "https://etcd-0.etcd.ns.svc:2380", "https://[::1]:2379"];
        assert_eq!(hosts(urls.into_iter()), ["127.0.0.1", "::1", "etcd-0.etcd.ns.svc", "localhost"]);
    }
}
