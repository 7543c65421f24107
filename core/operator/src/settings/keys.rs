//! The set of settings, read off the defaults.

use std::sync::LazyLock;

use toml::{Table, Value};

use super::Settings;

/// One setting.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub section: String,
    pub name: String,
    /// `prometheus.url`
    pub path: String,
    /// `prometheus-url`, the flag without its dashes.
    pub flag: String,
    /// `ETO_PROMETHEUS_URL`
    pub variable: String,
    /// The text of `--help`.
    pub help: String,
    pub default: Value,
}

impl Key {
    fn new(section: &str, name: String, default: Value) -> Self {
        let path = format!("{section}.{name}");
        let flag = format!("{section}-{name}");
        let variable = format!("ETO_{}", flag.replace('-', "_").to_uppercase());
        let text = super::help::of(&path).unwrap_or_default();
        let value = match &default {
            Value::String(s) if s.is_empty() => String::new(),
            Value::String(s) => format!(" [default: {s}]"),
            other => format!(" [default: {other}]"),
        };
        let help = format!("{text} [{variable}]{value}");
        Key { section: section.to_owned(), name, path, flag, variable, help, default }
    }

    /// A value from text (environment, flag), of the type of the default.
    pub(super) fn parse(&self, text: &str) -> Result<Value, String> {
        match self.default {
            Value::Boolean(_) => match text {
                "true" | "1" | "yes" | "on" => Ok(Value::Boolean(true)),
                "false" | "0" | "no" | "off" => Ok(Value::Boolean(false)),
                _ => Err("expected true or false".into()),
            },
            Value::Integer(_) => text.parse().map(Value::Integer).map_err(|_| "expected a whole number".into()),
            _ => Ok(Value::String(text.to_owned())),
        }
    }
}

/// All settings, in the order of the help.
pub(super) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let defaults = Table::try_from(Settings::default()).unwrap_or_default();
    let mut keys = Vec::new();
    for (section, table) in defaults {
        if let Value::Table(table) = table {
            keys.extend(table.into_iter().map(|(name, default)| Key::new(&section, name, default)));
        }
    }
    keys
});

/// The candidate most like `word`, if any is like it at all.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    candidates
        .map(|c| (strsim::normalized_damerau_levenshtein(word, c), c))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c.to_owned())
}
