//! Where the policies are that come with the product, and the user's own over them.

use std::fmt;
use std::path::{Path, PathBuf};

/// Variable that names the directory of the built-in policies.
pub const VARIABLE: &str = "ETO_BUILTIN_POLICIES";

/// The directories to serve policies from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDirs {
    /// The built-in ones; `None` = not found.
    pub builtin: Option<PathBuf>,
    /// The user's: a module there stands in for the built-in one of the same name.
    pub own: Option<PathBuf>,
    /// Where the built-in ones were looked for.
    looked: Vec<PathBuf>,
}

impl PolicyDirs {
    /// The built-in policies are in the directory that the variable names; where it is not set, in the first of these
    /// that exists: `../policies` and `../share/eto/policies` seen from the executable's directory, and
    /// `target/policies` of the present directory.
    pub fn find(own: Option<PathBuf>, variable: Option<PathBuf>, executable: Option<&Path>) -> PolicyDirs {
        let looked = if let Some(named) = variable {
            vec![named]
        } else {
            let beside = executable.and_then(Path::parent).and_then(Path::parent);
            let installed = beside.map(|root| [root.join("policies"), root.join("share/eto/policies")]);
            installed.into_iter().flatten().chain([PathBuf::from("target/policies")]).collect()
        };
        let builtin = looked.iter().find(|dir| dir.is_dir()).cloned();
        PolicyDirs { builtin, own, looked }
    }

    /// As this process finds them.
    pub fn of_this_process(own: Option<PathBuf>) -> PolicyDirs {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let executable = std::env::current_exe().ok();
        PolicyDirs::find(own, variable, executable.as_deref())
    }

    /// In the order of precedence, the last first served.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.builtin.iter().chain(&self.own).cloned().collect()
    }
}

impl fmt::Display for PolicyDirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.own {
            Some(own) => write!(f, "{} (--policies), ", own.display())?,
            None => f.write_str("no directory of your own (--policies gives one), ")?,
        }
        if let Some(builtin) = &self.builtin {
            return write!(f, "{} (built in)", builtin.display());
        }
        let looked: Vec<String> = self.looked.iter().map(|dir| dir.display().to_string()).collect();
        write!(
            f,
            "and no built-in policies: none of {} exists (`make policies` builds them; {VARIABLE} names their directory)",
            looked.join(", ")
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn built_in_policies_are_found_beside_the_executable() {
        let root = tempfile::tempdir().unwrap();
        let executable = root.path().join("debug/eto");
        let none = PolicyDirs::find(None, None, Some(&executable));
        assert!(none.looked.contains(&root.path().join("policies")));
        std::fs::create_dir_all(root.path().join("share/eto/policies")).unwrap();
        let installed = PolicyDirs::find(None, None, Some(&executable));
        assert_eq!(installed.builtin, Some(root.path().join("share/eto/policies")));
        std::fs::create_dir_all(root.path().join("policies")).unwrap();
        let own = root.path().join("mine");
        let both = PolicyDirs::find(Some(own.clone()), None, Some(&executable));
        assert_eq!(both.dirs(), [root.path().join("policies"), own]);
    }

    #[test]
    fn the_variable_alone_counts_where_it_is_set_and_its_lack_is_told() {
        let named = PolicyDirs::find(None, Some(PathBuf::from("/no/such/dir")), None);
        assert_eq!(named.builtin, None);
        let text = named.to_string();
        assert!(text.contains("/no/such/dir") && text.contains("make policies"), "{text}");
    }
}
