//! Pull secrets: those that the pod names, else those of its account, as the kubelet would have them. Read by name when
//! they are needed, kept nowhere, told nobody.

use eto_cycle::image::ImageQuestion;
use eto_registry::{Keyring, SecretKind};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, Client};

/// Secrets that are read for one image.
const MOST: usize = 16;

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) keyring: Keyring,
    /// What was not, and what to do.
    pub(super) trouble: Option<String>,
}

/// The credentials of a pod. Whatever is missing is told, and the rest is used.
pub(super) async fn of(client: &Client, question: &ImageQuestion) -> Found {
    let mut found = Found::default();
    let names = match &question.pull_secrets[..] {
        [] => account(client, question, &mut found).await,
        named => named.to_vec(),
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), &question.namespace);
    for name in names.iter().take(MOST) {
        match api.get_opt(name).await {
            Ok(Some(secret)) if add(&mut found.keyring, &secret) => {}
            Ok(Some(_)) => found.trouble(format!("Secret {name} is no pull secret")),
            Ok(None) => found.trouble(format!("Secret {name} is not there")),
            Err(error) => found.trouble(format!("Secret {name} {}", refused(&error))),
        }
    }
    found
}

impl Found {
    /// The first one is told: it is the one to mend.
    fn trouble(&mut self, what: String) {
        self.trouble.get_or_insert(what);
    }
}

/// The pull secrets of the pod's account. An account that is not there has none; the pod is then refused anyway.
async fn account(client: &Client, question: &ImageQuestion, found: &mut Found) -> Vec<String> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), &question.namespace);
    match api.get_opt(&question.service_account).await {
        Ok(account) => {
            let secrets = account.and_then(|a| a.image_pull_secrets).unwrap_or_default();
            secrets.into_iter().map(|s| s.name).filter(|n| !n.is_empty()).collect()
        }
        Err(error) => {
            found.trouble(format!("ServiceAccount {} {}", question.service_account, refused(&error)));
            Vec::new()
        }
    }
}

fn refused(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "may not be read by the operator (its role needs `get`; the chart's value images.pullSecrets gives it)"
                .to_owned()
        }
        kube::Error::Api(status) => format!("was not read: the API server says {}", status.code),
        _ => "was not read: the API server is not reached".to_owned(),
    }
}

/// Adds what a Secret has; false where it is none that pods pull with.
fn add(keyring: &mut Keyring, secret: &Secret) -> bool {
    let forms = [(".dockerconfigjson", SecretKind::DockerConfigJson), (".dockercfg", SecretKind::DockerCfg)];
    let data = secret.data.as_ref();
    forms
        .into_iter()
        .any(|(key, kind)| data.and_then(|d| d.get(key)).is_some_and(|bytes| keyring.add(kind, &bytes.0).is_ok()))
}
