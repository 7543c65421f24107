use std::time::Duration;

/// Why an image's config could not be read. Its text holds nothing that a registry said beyond codes and names, and no
/// credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The name of the image is none.
    #[error("`{image}` is no name of an image: {why}")]
    Name {
        /// As the container has it.
        image: String,
        /// What is wrong.
        why: String,
    },
    /// The settings do not allow this registry.
    #[error("the registry {registry} is none of those that the operator may ask (its setting images.registries)")]
    NotAllowed {
        /// Host, and port if any.
        registry: String,
    },
    /// No connection, no TLS, or it broke.
    #[error("the registry {registry} is not reached: {why}")]
    Unreached {
        /// Host, and port if any.
        registry: String,
        /// The innermost cause.
        why: String,
    },
    /// It did not answer in time.
    #[error("the registry {registry} did not answer within {} s", after.as_secs())]
    Late {
        /// Host, and port if any.
        registry: String,
        /// The time for all requests of a reading.
        after: Duration,
    },
    /// 401 or 403.
    #[error("the registry {registry} refuses {} (HTTP {code})", if *anonymous { "whoever has no credentials" } else { "the credentials" })]
    Refused {
        /// Host, and port if any.
        registry: String,
        /// HTTP status.
        code: u16,
        /// Nothing was shown to it.
        anonymous: bool,
    },
    /// 404.
    #[error("the registry {registry} has no {image}")]
    NotFound {
        /// Host, and port if any.
        registry: String,
        /// The image, or what it names.
        image: String,
    },
    /// Another status.
    #[error("the registry {registry} answered with HTTP {code}")]
    Status {
        /// Host, and port if any.
        registry: String,
        /// HTTP status.
        code: u16,
    },
    /// More than is read.
    #[error("the registry {registry} sent more than {limit} bytes for the {what}")]
    TooLarge {
        /// Host, and port if any.
        registry: String,
        /// What was asked for.
        what: &'static str,
        /// In bytes.
        limit: usize,
    },
    /// Not what the digest says.
    #[error("what the registry {registry} sent as {what} is not what its digest says")]
    Forged {
        /// Host, and port if any.
        registry: String,
        /// What was asked for.
        what: &'static str,
    },
    /// Something else than an image: a chart, a policy, HTML.
    #[error("{image} is no container image that can be read: {why}")]
    NoImage {
        /// As the container has it.
        image: String,
        /// What it is instead.
        why: String,
    },
    /// An index without what is wanted.
    #[error("{image} has no image for linux/{architecture}, but for {there}")]
    NoPlatform {
        /// As the container has it.
        image: String,
        /// As in Kubernetes' labels.
        architecture: String,
        /// The platforms it has.
        there: String,
    },
}

impl ReadError {
    /// Whether somebody answered.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, ReadError::Unreached { .. } | ReadError::Late { .. })
    }

    /// Whether other credentials may help.
    pub fn is_refusal(&self) -> bool {
        // Registries hide from strangers what is there.
        matches!(self, ReadError::Refused { .. } | ReadError::NotFound { .. })
    }
}
