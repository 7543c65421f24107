//! Keeps what was sent as a secret out of what is told: servers and proxies quote requests in their errors.

use std::sync::Arc;

const HIDDEN: &str = "[hidden]";

/// What must not be shown, whoever says it. Has no `Debug`.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<[String]>);

impl Secrets {
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<String> = secrets.into_iter().filter(|s| !s.is_empty()).collect();
        // One may contain another.
        all.sort_by_key(|s| std::cmp::Reverse(s.len()));
        Secrets(all.into())
    }

    /// A body without them. An answer that is no error is left as it is: it is data, which can be long, and is not quoted.
    pub(crate) fn hide(&self, body: Vec<u8>) -> Vec<u8> {
        if self.0.is_empty() || body.starts_with(br#"{"status":"success""#) {
            return body;
        }
        self.hide_text(&String::from_utf8_lossy(&body)).into_bytes()
    }

    pub(crate) fn hide_text(&self, text: &str) -> String {
        self.0.iter().fold(
            text.to_owned(),
            |text, secret| {
                if text.contains(secret) { text.replace(secret, HIDDEN) } else { text }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_cut_out_of_errors_and_data_is_left() {
        let secrets = Secrets::new(["tok".to_owned(), String::new(), "token-1".to_owned()]);
        assert_eq!(secrets.hide(b"Bearer token-1, tok".to_vec()), b"Bearer [hidden], [hidden]");
        let data = br#"{"status":"success","data":"tok"}"#.to_vec();
        assert_eq!(secrets.hide(data.clone()), data);
        assert_eq!(Secrets::default().hide_text("tok"), "tok");
    }
}
