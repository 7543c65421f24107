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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::Router;
    use axum::http::{StatusCode, Uri, header};
    use axum::response::{IntoResponse, Response};
    use serde_json::{Value, json};

    use super::*;

    /// What an API server answers, by the end of the path.
    fn answer(path: &str) -> Response {
        let status = |code: u16, reason: &str| {
            let told = "told by the test";
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": told})
        };
        let secret =
            |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data});
        let (code, body) = match path.strip_prefix("/api/v1/namespaces/team/").unwrap_or_default() {
            "serviceaccounts/default" => (
                200,
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}, "imagePullSecrets": [{"name": "robot"}]}),
            ),
            // {"auths":{"r.example":{"username":"u","password":"p"}}}
            "secrets/robot" => (
                200,
                secret(
                    json!({".dockerconfigjson": "eyJhdXRocyI6eyJyLmV4YW1wbGUiOnsidXNlcm5hbWUiOiJ1IiwicGFzc3dvcmQiOiJwIn19fQ=="}),
                ),
            ),
            "secrets/opaque" => (200, secret(json!({"password": "cA=="}))),
            "secrets/shut" | "serviceaccounts/shut" => (403, status(403, "Forbidden")),
            _ => (404, status(404, "NotFound")),
        };
        (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body.to_string())
            .into_response()
    }

    /// Whether credentials were found, and the trouble.
    async fn found(client: &Client, secrets: &[&str], account: &str) -> (bool, String) {
        let question = ImageQuestion {
            namespace: "team".into(),
            image: "r.example/train:1".into(),
            architecture: None,
            pull_secrets: secrets.iter().map(|s| (*s).to_owned()).collect(),
            service_account: account.into(),
        };
        let found = of(client, &question).await;
        (!found.keyring.is_empty(), found.trouble.unwrap_or_default())
    }

    #[tokio::test]
    async fn the_pods_secrets_are_read_or_those_of_its_account_and_what_is_missing_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let router = Router::new().fallback(|uri: Uri| async move { answer(uri.path()) });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::try_from(kube::Config::new(url)).unwrap();

        assert_eq!(found(&client, &["robot"], "default").await, (true, String::new()));
        assert_eq!(found(&client, &[], "default").await, (true, String::new()), "of its account");
        assert_eq!(found(&client, &[], "none").await, (false, String::new()), "an account that is not there");
        let (some, trouble) = found(&client, &["gone", "robot"], "default").await;
        assert_eq!((some, trouble.as_str()), (true, "Secret gone is not there"), "the rest is used");
        let (_, trouble) = found(&client, &["opaque"], "default").await;
        assert_eq!(trouble, "Secret opaque is no pull secret");
        for (secrets, account, what) in
            [(&["shut"][..], "default", "Secret shut"), (&[], "shut", "ServiceAccount shut")]
        {
            let (some, trouble) = found(&client, secrets, account).await;
            assert!(!some && trouble.starts_with(&format!("{what} may not be read by the operator")), "{trouble}");
        }
    }
}
