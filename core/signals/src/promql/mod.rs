//! Custom queries: checked, confined to namespaces, and split into as few requests as their meaning allows.
//!
//! A job's owner writes PromQL; the operator's credentials run it. So every selector of a query gets a matcher on the
//! namespace label that the owner can't undo, and what can't be confined is refused with its reason. Nothing of the owner's
//! text reaches Prometheus as text: it is parsed, checked node by node against what is known to be safe, written anew
//! from the tree by `render`, and that text is parsed again and compared before it is ever sent.

mod check;
mod locate;
mod render;
mod scope;

use std::collections::BTreeSet;

use promql_parser::parser::Expr;

pub(crate) use render::{Forced, alternation, quote};

use crate::error::QueryError;

/// Longest custom query, in bytes.
pub const MAX_QUERY_BYTES: usize = 4096;
/// Most distinct selectors of one custom query.
pub const MAX_SELECTORS: usize = 16;

/// The query as it is written from its tree: the same for queries that differ in spaces, quotes, comments or the order of
/// their clauses alone. `None` for what is no PromQL.
pub fn normal_form(query: &str) -> Option<String> {
    check::parse(query).ok().map(|expr| render::render(&expr, &Forced::none()))
}

/// Whether a text is a label name of classic PromQL, which needs no quotes.
pub(crate) fn is_label_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a text is a metric name of classic PromQL, which needs no quotes.
pub(crate) fn is_metric_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '_' | ':'))
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
}

/// A custom query that passed the checks.
#[derive(Debug)]
pub(crate) struct Custom {
    expr: Expr,
    label: String,
    /// The query in a form that can serve all namespaces in one request, if there is one: every series of its result carries
    /// the namespace it came from, and nothing in it looks across namespaces.
    shared: Option<Expr>,
}

impl Custom {
    /// Parses and checks; `label` is the label to confine by.
    pub(crate) fn new(query: &str, label: &str) -> Result<Custom, QueryError> {
        let expr = check::parse(query)?;
        check::check(query, &expr, label)?;
        let shared = Some(scope::keeping(&expr, label)).filter(|shared| scope::keeps_namespace(shared, label));
        let custom = Custom { expr, label: label.to_owned(), shared };
        custom.prove(query)?;
        Ok(custom)
    }

    /// The query for all of these namespaces at once, if that means the same as one query for each.
    pub(crate) fn confined_together(&self, forced: &Forced) -> Option<String> {
        self.shared.as_ref().map(|shared| render::render(shared, forced))
    }

    /// The query confined to one namespace.
    pub(crate) fn confined(&self, forced: &Forced) -> String {
        render::render(&self.expr, forced)
    }

    /// A query for the true times of what the confined query reads: for each selector the newest sample by namespace and
    /// pod, marked by [`SELECTOR_LABEL`]. `None` if it reads nothing (`vector(1)`).
    pub(crate) fn times(&self, forced: &Forced) -> Option<String> {
        let selectors = render::selectors(&self.expr, forced);
        let label = &self.label;
        let parts: Vec<String> = selectors
            .iter()
            .enumerate()
            .map(|(i, selector)| {
                format!(
                    r#"label_replace(max by ({label}, pod, exported_pod) (timestamp({selector})), "{SELECTOR_LABEL}", "{i}", "", "")"#
                )
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join(" or "))
    }

    /// Writes the query with a sample namespace, parses that and compares: a difference would mean that Prometheus might
    /// read something else than what was checked.
    fn prove(&self, query: &str) -> Result<(), QueryError> {
        let plain = render::render(&self.expr, &Forced::none());
        let same = check::parse(&plain).is_ok_and(|again| again == self.expr);
        let forced = Forced::new(&self.label, &BTreeSet::from(["x".to_owned()]), std::iter::empty());
        let confined =
            check::parse(&self.confined(&forced)).is_ok_and(|again| render::all_confined(&again, &self.label, "x"));
        if same && confined {
            Ok(())
        } else {
            Err(QueryError {
                reason: format!(
                    "the query can't be rewritten faithfully ({} bytes); write it in a simpler form, with parentheses",
                    query.len()
                ),
                position: None,
            })
        }
    }
}

/// Marks in the answer to [`Custom::times`] which selector a row is of.
pub(crate) const SELECTOR_LABEL: &str = "eto_selector";

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
