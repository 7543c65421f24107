//! `$(VAR)` references in commands, arguments and environment values, as the kubelet expands them.

/// Expands `$(NAME)` with `lookup`. A reference to an unknown name stays as it is, `$$` is a literal `$`
/// (so `$$(NAME)` gives `$(NAME)`), and a lone `$` means nothing special.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(value) = lookup(name) {
                out.push_str(value);
            } else {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    fn lookup(name: &str) -> Option<&'static str> {
        match name {
            "RANK" => Some("2"),
            "EMPTY" => Some(""),
            "OTHER" => Some("$(RANK)"),
            _ => None,
        }
    }

    #[test]
    fn expands_as_the_kubelet_does() {
        // The cases of Kubernetes' own expansion table that concern syntax.
        for (text, wanted) in [
            ("--rank=$(RANK)", "--rank=2"),
            ("$(RANK)$(RANK)", "22"),
            ("$$(RANK)", "$(RANK)"),
            ("$$$(RANK)", "$2"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$(EMPTY)x", "x"),
            ("$(OTHER)", "$(RANK)"),
            ("$RANK", "$RANK"),
            ("cost: 5$", "cost: 5$"),
            ("$(RANK", "$(RANK"),
            ("$$", "$"),
            ("größe=$(RANK)€", "größe=2€"),
        ] {
            assert_eq!(expand(text, lookup), wanted, "{text}");
        }
    }
}
