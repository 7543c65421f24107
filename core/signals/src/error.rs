//! What can go wrong, typed. No variant carries a secret: credentials are read from files and never formatted.

use std::path::PathBuf;
use std::time::Duration;

/// Settings that can't be used; found before anything is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `url` is not an `http(s)` URL.
    #[error(
        "prometheus.url {url:?} can't be used: {why}; give the base URL, as in http://prometheus.monitoring.svc:9090"
    )]
    Url {
        /// The URL without any user info.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A number or duration is out of range.
    #[error("prometheus.{field} {why}")]
    Range {
        /// The key.
        field: &'static str,
        /// The range it has to be in.
        why: String,
    },
    /// Two settings exclude each other, or one lacks its other half.
    #[error("prometheus.{field}: {why}")]
    Conflict {
        /// The key.
        field: &'static str,
        /// What is in the way.
        why: String,
    },
    /// A header name or value that HTTP does not allow. The value is not shown: it may be a secret.
    #[error("prometheus.headers: {name:?} is not a valid HTTP header: {why}")]
    Header {
        /// The header's name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A label or metric name that Prometheus does not allow.
    #[error("prometheus.{field}: {name:?} is not a valid name in PromQL")]
    Name {
        /// The key.
        field: &'static str,
        /// The name given.
        name: String,
    },
}

/// Why the source gave no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No connection: refused, no such host, reset.
    #[error("Prometheus at {url} can't be reached: {why}")]
    Unreachable {
        /// Base URL.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// TLS could not be set up: an unknown CA, a wrong name, a client certificate that is missing or refused.
    #[error("TLS with Prometheus at {url} failed: {why}; check prometheus.tls")]
    Tls {
        /// Base URL.
        url: String,
        /// What rustls said.
        why: String,
    },
    /// The TLS handshake was done on our side, and the server ended the connection without an answer. In TLS 1.3 a server
    /// judges the client's certificate after that, and its alert may come too late to be read.
    #[error(
        "Prometheus at {url} ended the connection before it answered: {why}; if it asks for client certificates, check \
         prometheus.tls"
    )]
    Ended {
        /// Base URL.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// No full answer in time.
    #[error("Prometheus did not answer within {after:?}; see prometheus.timeout and prometheus.deadline")]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
    /// 401 or 403.
    #[error(
        "Prometheus refused the credentials (HTTP {status}): {body}; check prometheus.bearer-token-file, or prometheus.username and prometheus.password-file"
    )]
    Denied {
        /// HTTP status.
        status: u16,
        /// Beginning of the body.
        body: String,
    },
    /// Another 4xx or 5xx without an error of Prometheus in its body.
    #[error("HTTP {status} from Prometheus: {body}")]
    Http {
        /// HTTP status.
        status: u16,
        /// Beginning of the body.
        body: String,
    },
    /// A redirect, which is not followed: credentials would go to a host that nobody configured.
    #[error("HTTP {status} redirects to {to:?}; set prometheus.url to the address that answers itself")]
    Redirect {
        /// HTTP status.
        status: u16,
        /// `Location` without its query.
        to: String,
    },
    /// Prometheus understood the request and said no (`status: error`).
    #[error("Prometheus refused the query ({kind}): {message}")]
    Refused {
        /// `errorType`: `bad_data`, `execution`, `timeout`, ...
        kind: String,
        /// `error`, shortened.
        message: String,
    },
    /// The body is not JSON: a login page, a proxy's error page.
    #[error("the answer is not JSON of the Prometheus API but {what}; is prometheus.url right, with its path prefix?")]
    NotJson {
        /// `an HTML page`, or the parser's words and the beginning of the body.
        what: String,
    },
    /// JSON, but not of the shape of the query API, or a kind of result that a signal can't be (matrix, string).
    #[error("the answer can't be used: {why}")]
    Shape {
        /// What is wrong with it.
        why: String,
    },
    /// The body is larger than the cap.
    #[error("the answer is larger than {limit} bytes (prometheus.max_response_bytes)")]
    TooLarge {
        /// The cap in bytes.
        limit: u64,
    },
    /// A file with credentials or certificates can't be used.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong; never its content.
        why: String,
    },
    /// The signal's own query is not allowed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// No built-in signal has this name, and it has no query.
    #[error(
        "there is no built-in signal {name:?}; built-in are cpu-utilisation, memory-utilisation, gpu-utilisation, gpu-memory-utilisation and training-throughput; others need a query"
    )]
    UnknownSignal {
        /// The name asked for.
        name: String,
    },
}

impl SourceError {
    /// Whether the same request may succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            SourceError::Unreachable { .. } | SourceError::Ended { .. } | SourceError::Timeout { .. } => true,
            SourceError::Http { status, .. } => *status >= 500 || *status == 429,
            SourceError::Refused { kind, .. } => matches!(kind.as_str(), "timeout" | "unavailable" | "internal"),
            _ => false,
        }
    }

    /// Whether it says that the source as a whole does not answer (and not only that this query is bad).
    pub(crate) fn is_outage(&self) -> bool {
        !self.is_of_the_data()
            && !matches!(self, SourceError::Query(_) | SourceError::UnknownSignal { .. })
            && !matches!(self, SourceError::Refused { kind, .. } if kind == "bad_data")
    }

    /// Whether it ran out of time: the source may be slow, or only this query over these series.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            SourceError::Timeout { .. } => true,
            SourceError::Refused { kind, .. } => matches!(kind.as_str(), "timeout" | "canceled"),
            _ => false,
        }
    }

    /// Whether it comes of what was read: the same query over other series may well be answered.
    pub(crate) fn is_of_the_data(&self) -> bool {
        match self {
            SourceError::Shape { .. } | SourceError::TooLarge { .. } => true,
            SourceError::Refused { kind, .. } => kind == "execution",
            _ => false,
        }
    }
}

/// Why a custom query is refused. Positions are counted from 1, the column in characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{}", .position.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default())]
pub struct QueryError {
    /// What is wrong and what to do.
    pub reason: String,
    /// Line and column in the query as written, where it can be told.
    pub position: Option<(usize, usize)>,
}
