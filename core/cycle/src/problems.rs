//! Everything that is wrong with a spec, at once.

use std::fmt;

/// One thing that is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecProblem {
    /// Field path, such as `spec.scalingPolicy.metrics[0].resource.target`.
    pub path: String,
    /// What is wrong and how to mend it.
    pub message: String,
}

/// All problems of one spec; never empty when it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct SpecProblems(pub Vec<SpecProblem>);

impl SpecProblems {
    pub(crate) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(SpecProblem { path: path.into(), message: message.into() });
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value` if nothing is wrong.
    pub(crate) fn or<T>(self, value: T) -> Result<T, SpecProblems> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for SpecProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { "; " };
            write!(f, "{gap}{}: {}", p.path, p.message)?;
        }
        Ok(())
    }
}
