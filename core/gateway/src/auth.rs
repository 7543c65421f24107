//! Whose a token is.

use std::future::Future;

/// Who a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// UID of the job that the pod is of: the only one it may touch.
    pub job_uid: String,
}

/// Why a token is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// It is no valid token of the audience [`AUDIENCE`]. Answered with 401.
    #[error("the token is not valid: {0}")]
    Invalid(String),
    /// It is valid, and its pod is not one of a job's. Answered with 403.
    #[error("no pod of a job: {0}")]
    Forbidden(String),
    /// It can't be told at the moment: the API server is away, or the pod is not known yet. Answered with 503, unless
    /// the token was good a short while ago.
    #[error("it can't be told whose the token is: {0}")]
    Unavailable(String),
}

/// The audience that tokens for the gateway are made for.
pub const AUDIENCE: &str = "elastic-training-gateway";

/// Tells whose a token is. Answers are kept for some minutes, so it is not asked for every request.
pub trait Authenticator: Send + Sync + 'static {
    /// Whose is it?
    fn authenticate(&self, token: &str) -> impl Future<Output = Result<Caller, AuthError>> + Send;
}
