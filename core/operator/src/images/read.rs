//! One reading: the credentials that the pod would pull with, and then the registry.

use std::time::Duration;

use eto_cycle::image::{ImageConfig, ImageQuestion};
use eto_registry::{Client, Keyring, ReadError};

use super::secrets;

/// Reads the commands of images; asks again each time.
pub(super) struct Reader {
    pub(super) registry: Client,
    /// For pull secrets, where they may be read.
    pub(super) secrets: Option<kube::Client>,
    /// Where the pod does not say.
    pub(super) architecture: String,
    /// For what is asked of the API server.
    pub(super) timeout: Duration,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl Reader {
    /// The command, or why not and what to do, in one sentence that stays the same while the facts do.
    pub(super) async fn read(&self, question: &ImageQuestion) -> Result<ImageConfig, String> {
        let (keyring, trouble) = match &self.secrets {
            Some(client) => {
                let found = tokio::time::timeout(self.timeout, secrets::of(client, question)).await;
                let found = found.unwrap_or_else(|_| secrets::Found {
                    trouble: Some(
                        "the API server did not answer in time when it was asked for pull secrets".to_owned(),
                    ),
                    ..secrets::Found::default()
                });
                (found.keyring, found.trouble)
            }
            None => (Keyring::default(), None),
        };
        let architecture = question.architecture.as_deref().unwrap_or(&self.architecture);
        let config = self.registry.config(&question.image, architecture, &keyring).await;
        let config = config.map_err(|error| self.advise(&error, trouble.as_deref()))?;
        ImageConfig::parse(&config.json).map_err(|e| format!("{}: {e}", question.image))
    }

    fn advise(&self, error: &ReadError, trouble: Option<&str>) -> String {
        let mend = "write the image's command into the template";
        match (error.is_refusal(), &self.secrets, trouble) {
            (true, _, Some(trouble)) => format!("{error}; {trouble}; or {mend}"),
            (true, None, _) => format!(
                "{error}; the operator reads no pull secrets (its setting images.pull-secrets, the chart's value \
                 images.pullSecrets); set that, or {mend}"
            ),
            _ => format!("{error}; {mend}"),
        }
    }
}
