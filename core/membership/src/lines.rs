//! The last lines of an output, for people: few, and fit to be shown.

/// Most lines that are kept.
pub const LAST_LINES: usize = 40;
/// Most bytes that are kept.
pub const LAST_LINES_BYTES: usize = 2048;

/// The last lines of an output, whole ones where more than one fits, without what a terminal would act on. Of a line that
/// was written over and over (a progress bar) it is what stood there last.
pub fn last_lines(output: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut room = LAST_LINES_BYTES;
    for line in output.lines().rev() {
        let mut line = shown(line);
        if line.is_empty() && kept.is_empty() {
            continue;
        }
        let needs = line.len() + usize::from(!kept.is_empty());
        if needs > room {
            if kept.is_empty() {
                let cut = line.len() - room;
                let at = (cut..line.len()).find(|at| line.is_char_boundary(*at)).unwrap_or(line.len());
                kept.push(line.split_off(at));
            }
            break;
        }
        room -= needs;
        kept.push(line);
        if kept.len() == LAST_LINES {
            break;
        }
    }
    kept.reverse();
    kept.join("\n")
}

/// A line as a terminal shows it in the end: after the last return, without colours and other controls.
fn shown(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let mut chars = line.rsplit('\r').next().unwrap_or(line).chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next() == Some('[') {
                    // Up to the letter that ends the sequence.
                    let _ = chars.by_ref().find(|c| ('@'..='~').contains(c));
                }
            }
            '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_output_in_whole_lines() {
        assert_eq!(last_lines("a\nb\n\n"), "a\nb");
        assert_eq!(last_lines(""), "");
        let many = (0..500).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let kept = last_lines(&many);
        assert_eq!((kept.lines().count(), kept.lines().last()), (LAST_LINES, Some("line 499")));
        let long = (0..30).map(|n| format!("{n} {}", "x".repeat(200))).collect::<Vec<_>>().join("\n");
        let kept = last_lines(&long);
        assert!(kept.len() <= LAST_LINES_BYTES && kept.lines().all(|l| l.len() >= 202), "{kept}");
        let one = format!("{}é", "ä".repeat(3000));
        let kept = last_lines(&one);
        assert!(kept.len() <= LAST_LINES_BYTES && kept.ends_with("äé"), "{}", kept.len());
    }

    #[test]
    fn what_a_terminal_would_have_shown() {
        assert_eq!(
            last_lines(" 10%\r 50%\r100%\r\nValueError: \u{1b}[31mbad\u{1b}[0m\u{7}\tshape  \n"),
            "100%\nValueError: bad\tshape"
        );
        assert_eq!(last_lines("cut \u{1b}["), "cut");
    }
}
