//! The signals that ask a script to stop.

/// Those that a container can have in the place of SIGTERM and its agent can take, with their numbers on Linux.
pub const STOP_SIGNALS: [(&str, i32); 7] =
    [("SIGTERM", 15), ("SIGINT", 2), ("SIGHUP", 1), ("SIGQUIT", 3), ("SIGUSR1", 10), ("SIGUSR2", 12), ("SIGWINCH", 28)];

/// Name and number of one of [`STOP_SIGNALS`] that is written as `SIGINT`, `INT` or `2`, in any case; `None` for all others.
pub fn stop_signal(written: &str) -> Option<(&'static str, i32)> {
    let upper = written.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is = |(name, number): &(&str, i32)| name.strip_prefix("SIG") == Some(bare) || number.to_string() == upper;
    STOP_SIGNALS.into_iter().find(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_one_meaning_however_it_is_written() {
        for written in ["SIGINT", "INT", "2", "sigint", " Int "] {
            assert_eq!(stop_signal(written), Some(("SIGINT", 2)), "{written}");
        }
        for written in ["", "SIG", "SIGSIGINT", "SIG2", "02", "SIGKILL", "9", "SIGRTMIN+3"] {
            assert_eq!(stop_signal(written), None, "{written}");
        }
    }
}
