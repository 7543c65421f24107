//! Tries whether the members beside this one are there ([`eto_membership::Neighbours`]).

use std::io::ErrorKind;
use std::time::Duration;

use eto_membership::{Neighbours, PROBE_EVERY_MS, PROBE_TIMEOUT_MS, Round};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::settings::METRICS_PORT;

/// The neighbours, and tries of them that go on beside everything else.
pub(crate) struct Probes {
    neighbours: Neighbours,
    tick: tokio::time::Interval,
    sender: mpsc::Sender<(String, bool)>,
    results: mpsc::Receiver<(String, bool)>,
}

impl Probes {
    pub(crate) fn new() -> Probes {
        let mut tick = interval(Duration::from_millis(PROBE_EVERY_MS));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (sender, results) = mpsc::channel(8);
        Probes { neighbours: Neighbours::default(), tick, sender, results }
    }

    /// See [`Neighbours::enter`]. Who is new is tried at once.
    pub(crate) fn enter(&mut self, place: Option<(&Round, usize)>) {
        if self.neighbours.enter(place) {
            self.tick.reset_immediately();
        }
    }

    pub(crate) fn out_of_reach(&self) -> Vec<String> {
        self.neighbours.out_of_reach()
    }

    /// Tries them in their time; returns when there is something else to tell.
    pub(crate) async fn news(&mut self) {
        loop {
            tokio::select! {
                _ = self.tick.tick() => self.try_all(),
                Some((uid, reached)) = self.results.recv() => {
                    if self.neighbours.tried(&uid, reached) {
                        return;
                    }
                }
            }
        }
    }

    fn try_all(&self) {
        for (uid, address) in self.neighbours.all() {
            let (uid, address, sender) = (uid.to_owned(), address.to_owned(), self.sender.clone());
            tokio::spawn(async move {
                // Whether anything listens there does not matter: that nothing does is an answer too.
                let reached = reaches(&address, METRICS_PORT).await;
                // The agent may have ended.
                let _ = sender.send((uid, reached)).await;
            });
        }
    }
}

/// Whether there is anybody at this address.
async fn reaches(address: &str, port: u16) -> bool {
    let tried = timeout(Duration::from_millis(PROBE_TIMEOUT_MS), TcpStream::connect((address, port))).await;
    match tried {
        Ok(Ok(_)) => true,
        // Refused by the pod itself; all other errors are of the way to it.
        Ok(Err(error)) => matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn that_nothing_listens_is_an_answer() {
        assert!(reaches("127.0.0.1", 1).await);
    }

    /// Nobody can connect to all at once: the system says so without a word on the network.
    #[tokio::test]
    async fn what_can_t_be_connected_to_is_not_reached() {
        assert!(!reaches("255.255.255.255", 9400).await);
    }
}
