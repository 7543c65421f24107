//! What ends a run before its time: Ctrl-C, SIGTERM, a closed terminal, a key, the time limit.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Why a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C, or `q` in the live view.
    Interrupt,
    Terminate,
    HangUp,
    /// `--max-seconds` have passed.
    TimeLimit,
}

impl Stop {
    /// The exit code: 128 and the signal, 124 for the time limit (as `timeout` has it).
    pub(crate) fn code(self) -> u8 {
        match self {
            Stop::HangUp => 129,
            Stop::Interrupt => 130,
            Stop::Terminate => 143,
            Stop::TimeLimit => 124,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Interrupt => "stopping all workers (interrupted; once more kills them)",
            Stop::Terminate => "stopping all workers (SIGTERM)",
            Stop::HangUp => "stopping all workers (the terminal was closed)",
            Stop::TimeLimit => "stopping all workers (the time limit is reached)",
        })
    }
}

/// Listens for all of them.
pub(crate) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    keyboard: (mpsc::Sender<()>, mpsc::Receiver<()>),
    limit: Option<Instant>,
}

impl Stops {
    pub(crate) fn listen(limit: Option<Duration>) -> io::Result<Stops> {
        Ok(Stops {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            keyboard: mpsc::channel(4),
            // One that no clock can tell is none.
            limit: limit.and_then(|limit| Instant::now().checked_add(limit)),
        })
    }

    /// Where the live view says that the user wants to quit.
    pub(crate) fn keyboard(&self) -> mpsc::Sender<()> {
        self.keyboard.0.clone()
    }

    /// Waits for the next.
    pub(crate) async fn next(&mut self) -> Stop {
        let limit = self.limit;
        let limit = async move {
            match limit {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let stop = tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hang_up.recv() => Stop::HangUp,
            Some(()) = self.keyboard.1.recv() => Stop::Interrupt,
            () = limit => Stop::TimeLimit,
        };
        if stop == Stop::TimeLimit {
            self.limit = None;
        }
        stop
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_limit_ends_a_run_and_one_beyond_all_clocks_is_none() {
        let mut stops = Stops::listen(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(stops.next().await, Stop::TimeLimit);
        let mut stops = Stops::listen(Some(Duration::MAX)).unwrap();
        stops.keyboard().send(()).await.unwrap();
        assert_eq!(stops.next().await, Stop::Interrupt);
    }
}
