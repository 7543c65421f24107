//! Work that may take long, and says so.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// From when on people wonder whether anything happens.
const LONG: Duration = Duration::from_secs(1);

/// Does the work; if it takes longer than a second, `what` is said on stderr meanwhile.
pub(crate) fn tell_if_slow<T>(what: &str, work: impl FnOnce() -> T) -> T {
    after(LONG, || drop(writeln!(std::io::stderr(), "eto run: {what}")), work)
}

/// Does the work; `tell` is called if it has not ended after `limit`.
fn after<T>(limit: Duration, tell: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (working, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        });
        let made = work();
        drop(working);
        made
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_work_is_told() {
        let (telling, told) = channel();
        after(Duration::ZERO, move || telling.send(()).unwrap(), || told.recv().unwrap());
        let (telling, told) = channel();
        assert_eq!(after(Duration::from_secs(3600), move || telling.send(()).unwrap(), || 7), 7);
        assert!(told.recv().is_err(), "what is quick is not told");
    }
}
