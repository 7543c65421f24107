//! Where in a query something stands. The parser's tree has no positions, so the text is scanned for the word at fault.

/// Scans a query: calls `each` with the byte range of every word and of every other character that is code, skipping strings
/// and comments. Stops when `each` says so.
fn scan(query: &str, each: &mut dyn FnMut(usize, &str) -> bool) -> Option<(usize, &'static str)> {
    let bytes = query.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let start = i;
        match bytes[i] {
            quote @ (b'"' | b'\'' | b'`') => {
                i += 1;
                while i < bytes.len() && bytes[i] != quote {
                    i += if bytes[i] == b'\\' && quote != b'`' { 2 } else { 1 };
                }
                if i >= bytes.len() {
                    return Some((start, "this string is never closed"));
                }
                i += 1;
            }
            b'#' => i += query[i..].find('\n').unwrap_or(bytes.len() - i),
            c if c.is_ascii_alphanumeric() || matches!(c, b'_' | b':') => {
                while i < bytes.len() && (bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'_' | b':')) {
                    i += 1;
                }
                if each(start, &query[start..i]) {
                    return None;
                }
            }
            c => {
                i += query[i..].chars().next().map_or(1, char::len_utf8);
                if !c.is_ascii_whitespace() && each(start, &query[start..i]) {
                    return None;
                }
            }
        }
    }
    None
}

/// Line and column, from 1, of a byte offset.
pub(super) fn line_column(query: &str, offset: usize) -> (usize, usize) {
    let before = query.get(..offset).unwrap_or(query);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The first place where `word` stands as a word of the query's code; one that stands in a string only, if not.
pub(super) fn word(query: &str, word: &str) -> Option<(usize, usize)> {
    let mut found = None;
    scan(query, &mut |offset, text| {
        if text == word {
            found = Some(offset);
        }
        found.is_some()
    });
    found.or_else(|| query.find(word).filter(|_| !word.is_empty())).map(|offset| line_column(query, offset))
}

/// What a scan alone can tell of a query that does not parse: an open string, a bracket without its partner, two operands
/// or two operators side by side, an end where an operand is due.
pub(super) fn flaw(query: &str) -> Option<((usize, usize), &'static str)> {
    let mut open: Vec<(usize, char)> = Vec::new();
    let mut found: Option<(usize, &'static str)> = None;
    let mut last: Option<(usize, char)> = None;
    let unclosed = scan(query, &mut |offset, text| {
        let c = text.chars().next().unwrap_or(' ');
        match c {
            '(' | '[' | '{' => open.push((offset, c)),
            ')' | ']' | '}' => {
                let expected =
                    matches!((open.pop(), c), (Some((_, '(')), ')') | (Some((_, '[')), ']') | (Some((_, '{')), '}'));
                if !expected {
                    found = Some((offset, "this bracket closes nothing"));
                } else if c == ')' && matches!(last, Some((_, '+' | '*' | '/' | '%' | '^' | '-'))) {
                    found = Some((offset, "an operand is missing before this"));
                }
            }
            '*' | '/' | '%' | '^' if matches!(last, None | Some((_, '+' | '*' | '/' | '%' | '^' | '-' | '('))) => {
                found = Some((offset, "an operand is missing before this operator"));
            }
            _ => {}
        }
        last = Some((offset, c));
        found.is_some()
    });
    let end = query.trim_end().len();
    let found = found
        .or(unclosed)
        .or_else(|| open.last().map(|(offset, _)| (*offset, "this bracket is never closed")))
        .or(match last {
            Some((_, '+' | '*' | '/' | '%' | '^' | '-' | '=' | '<' | '>' | '!' | '@')) => {
                Some((end, "an operand is missing here"))
            }
            _ => None,
        });
    found.map(|(offset, what)| (line_column(query, offset), what))
}
