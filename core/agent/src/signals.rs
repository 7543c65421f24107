//! The signals that the agent takes, and what each of them means.

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Signals that a script can be asked to stop by: those that the agent, which gets them in its place, can take.
const STOPS: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// The signal of this name, as `SIGINT`, where a script can be asked to stop by it.
pub(crate) fn stop_signal(name: &str) -> Option<Signal> {
    STOPS.into_iter().find(|s| s.as_str() == name)
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
    others: Vec<(Stream, Signal)>,
    stop: Signal,
}

impl Signals {
    /// Takes SIGTERM, SIGINT and `stop` as the word that the pod is to stop: container runtimes send the last, and it is
    /// not passed on as it is.
    pub(crate) fn listen(stop: Signal) -> std::io::Result<Signals> {
        let others = STOPS.into_iter().map(|name| Ok((signal(SignalKind::from_raw(name as i32))?, name)));
        Ok(Signals { child: signal(SignalKind::child())?, others: others.collect::<std::io::Result<_>>()?, stop })
    }

    pub(crate) async fn next(&mut self) -> Seen {
        let (others, stop) = (&mut self.others, self.stop);
        let other = std::future::poll_fn(|context| {
            let ready = others.iter_mut().find_map(|(s, name)| s.poll_recv(context).is_ready().then_some(*name));
            ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        });
        tokio::select! {
            _ = self.child.recv() => Seen::Child,
            name = other => match name {
                Signal::SIGTERM | Signal::SIGINT => Seen::Stop,
                name if name == stop => Seen::Stop,
                name => Seen::Other(name),
            },
        }
    }
}
