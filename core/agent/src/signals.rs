//! The signals that the agent takes, and what each of them means.

use eto_membership::STOP_SIGNALS;
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Signals by which images of other init systems are stopped (SIGRTMIN+3, SIGPWR), and that nobody passes on to a script. The
/// first process of a container gets none that it has not asked for, so each is asked for. C libraries keep the first
/// real-time signals, up to 34, for themselves.
const ONLY_STOPS: [std::ops::RangeInclusive<i32>; 2] = [Signal::SIGPWR as i32..=Signal::SIGPWR as i32, 35..=64];

/// The signal that is written so, where a script can be asked to stop by it.
pub(crate) fn stop_signal(written: &str) -> Option<Signal> {
    eto_membership::stop_signal(written).and_then(|(_, number)| Signal::try_from(number).ok())
}

pub(crate) enum Seen {
    Child,
    /// The pod is to stop.
    Stop,
    /// Meant for the script.
    Other(Signal),
}

pub(crate) struct Signals {
    child: Stream,
    /// With the number of each.
    others: Vec<(Stream, i32)>,
    stop: Signal,
}

impl Signals {
    /// Takes SIGTERM, SIGINT, `stop` and those that no script waits for as the word that the pod is to stop: container
    /// runtimes send one of them, and it is not passed on as it is.
    pub(crate) fn listen(stop: Signal) -> std::io::Result<Signals> {
        let numbers = STOP_SIGNALS.into_iter().map(|(_, number)| number).chain(ONLY_STOPS.into_iter().flatten());
        let others = numbers.map(|number| Ok((signal(SignalKind::from_raw(number))?, number)));
        Ok(Signals { child: signal(SignalKind::child())?, others: others.collect::<std::io::Result<_>>()?, stop })
    }

    pub(crate) async fn next(&mut self) -> Seen {
        let (others, stop) = (&mut self.others, self.stop);
        let other = std::future::poll_fn(|context| {
            let ready = others.iter_mut().find_map(|(s, number)| s.poll_recv(context).is_ready().then_some(*number));
            ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        });
        tokio::select! {
            _ = self.child.recv() => Seen::Child,
            number = other => {
                let is_stop = ONLY_STOPS.iter().any(|range| range.contains(&number));
                match Signal::try_from(number) {
                    _ if is_stop => Seen::Stop,
                    Ok(Signal::SIGTERM | Signal::SIGINT) | Err(_) => Seen::Stop,
                    Ok(name) if name == stop => Seen::Stop,
                    Ok(name) => Seen::Other(name),
                }
            },
        }
    }
}
