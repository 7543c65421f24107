//! Whose token that is: the API server is asked (`TokenReview`).

use std::time::Duration;

use eto_gateway::AUDIENCE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

/// The API server's answer is waited for this long.
const PATIENCE: Duration = Duration::from_secs(10);
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The pod that a token was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
}

/// Why it can't be said.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("the token is not one of a pod for {AUDIENCE}: {0}")]
    Refused(String),
    #[error("the API server did not review the token: {0}")]
    Unreached(String),
}

/// Reviews tokens. Its answers are kept by the server that asks.
pub struct Reviewer {
    api: Api<TokenReview>,
}

impl Reviewer {
    pub fn new(client: kube::Client) -> Self {
        Reviewer { api: Api::all(client) }
    }

    /// The pod whose token this is.
    pub async fn bearer(&self, token: &str) -> Result<Bearer, ReviewError> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) },
            status: None,
        };
        let parameters = PostParams::default();
        let asked = self.api.create(&parameters, &review);
        let answer = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(answer) => answer.map_err(|e| ReviewError::Unreached(crate::trouble::of_request(&e)))?,
            Err(_) => return Err(ReviewError::Unreached(format!("no answer within {PATIENCE:?}"))),
        };
        read(&answer.status.unwrap_or_default()).map_err(ReviewError::Refused)
    }
}

/// What a review says. A token that is not bound to a pod (one of `kubectl create token`, say) is nobody's.
fn read(status: &TokenReviewStatus) -> Result<Bearer, String> {
    if status.authenticated != Some(true) {
        return Err(status.error.clone().unwrap_or_else(|| "it is not a valid token".to_owned()));
    }
    if !status.audiences.iter().flatten().any(|a| a == AUDIENCE) {
        return Err("it was made for another audience".to_owned());
    }
    let user = status.user.as_ref().ok_or("it has no user")?;
    let name = user.username.as_deref().unwrap_or_default();
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let (namespace, _) = account.ok_or_else(|| format!("{name} is no service account"))?;
    let extra = |key: &str| user.extra.as_ref().and_then(|e| e.get(key)?.first().cloned());
    match (extra(POD_NAME), extra(POD_UID)) {
        (Some(pod), Some(pod_uid)) => Ok(Bearer { namespace: namespace.to_owned(), pod, pod_uid }),
        _ => Err("it is not bound to a pod".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn said(change: impl FnOnce(&mut Value)) -> Result<Bearer, String> {
        let mut status = json!({
            "authenticated": true, "audiences": [AUDIENCE],
            "user": {
                "username": "system:serviceaccount:team:default",
                "extra": {POD_NAME: ["p"], POD_UID: ["u"]},
            },
        });
        change(&mut status);
        read(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_token_bound_to_a_pod_is_that_pods() {
        let bearer = said(|_| {}).unwrap();
        assert_eq!(bearer, Bearer { namespace: "team".into(), pod: "p".into(), pod_uid: "u".into() });
    }

    #[test]
    fn any_other_token_is_nobodys() {
        assert!(said(|s| s["authenticated"] = json!(false)).is_err());
        assert!(said(|s| s["audiences"] = json!(["https://kubernetes.default.svc"])).is_err());
        assert!(said(|s| s["audiences"] = json!([])).is_err());
        assert!(said(|s| s["user"]["username"] = json!("admin")).is_err());
        assert!(said(|s| s["user"]["extra"] = json!({POD_NAME: ["p"]})).is_err(), "a token of no pod");
        assert!(read(&TokenReviewStatus::default()).is_err());
    }
}
