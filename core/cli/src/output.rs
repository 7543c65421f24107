//! What is printed on stdout.

use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Yaml,
    /// For people.
    Table,
}

/// Prints data as JSON or YAML (a table is each command's own).
pub(crate) fn print<T: Serialize>(format: Format, data: &T) -> Result<(), Failure> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(data).map(|s| s + "\n").map_err(io::Error::from),
        Format::Yaml | Format::Table => serde_yaml::to_string(data).map(|t| quoted(&t)).map_err(io::Error::other),
    }
    .map_err(Failure::Output)?;
    raw(&text)
}

/// Quotes the words that YAML 1.1 reads as booleans and YAML 1.2 as text: kubectl would take a bare `Off` for false.
fn quoted(yaml: &str) -> String {
    const WORDS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];
    let mut text = String::with_capacity(yaml.len());
    for line in yaml.lines() {
        let start = line
            .rfind(": ")
            .map(|at| at + 2)
            .or_else(|| line.trim_start().starts_with("- ").then(|| line.find("- ").map_or(0, |at| at + 2)));
        match start.and_then(|at| line.split_at_checked(at)) {
            Some((head, word)) if WORDS.contains(&word.to_ascii_lowercase().as_str()) => {
                text.push_str(head);
                text.push('"');
                text.push_str(word);
                text.push('"');
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Prints text as it is.
pub(crate) fn raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Tells on stderr what is wrong. Where that can't be written there is nobody to tell.
pub(crate) fn complain(command: &str, what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "{command}: {what}");
}

/// Rows of two columns, aligned; further lines of a value are indented under it.
pub(crate) fn pairs(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(k, _)| k.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in rows {
        let mut lines = value.lines();
        let first = lines.next().unwrap_or_default();
        text.push_str(format!("{key:<width$}  {first}").trim_end());
        text.push('\n');
        for line in lines {
            text.push_str(&" ".repeat(width + 2));
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// A table with a header, columns aligned.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], i: usize| row.get(i).cloned().unwrap_or_default();
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(i, h)| rows.iter().map(|r| cell(r, i).chars().count()).max().unwrap_or(0).max(h.len()))
        .collect();
    let header: Vec<String> = header.iter().map(|h| h.to_uppercase()).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let line: Vec<String> = widths.iter().enumerate().map(|(i, w)| format!("{:<w$}", cell(row, i))).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}
