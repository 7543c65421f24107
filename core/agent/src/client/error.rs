use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;

/// Why the gateway could not be reached, or did not take what it was told.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address can't be used.
    #[error("the gateway's address `{url}`: {why}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The certificates to trust can't be used.
    #[error("the gateway's CA certificate: {0}")]
    Certificate(String),
    /// The token can't be read.
    #[error("the token in {}: {source}", .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// No connection.
    #[error("no connection to {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// What is wrong.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    /// The request can't be made.
    #[error("the request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// Nothing came in time.
    #[error("nothing came for {} s", .0.as_secs_f64())]
    Silence(Duration),
    /// The stream of a watch ended.
    #[error("the gateway ended the watch")]
    Ended,
    /// A line of the stream is longer than any assignment.
    #[error("a line of more than {0} bytes came")]
    TooLong(usize),
    /// The gateway said no.
    #[error("the gateway answered {status}: {text}")]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// The beginning of its body.
        text: String,
    },
}
