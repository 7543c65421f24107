//! What processes write to stderr: passed through as it comes, with the end of it kept for whoever asks why they failed.
//!
//! The processes write into a pipe that a thread of the agent's reads. Where stderr is a terminal they get it itself.

use std::collections::VecDeque;
use std::io::{IsTerminal, PipeWriter, Read, Write};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eto_membership::last_lines;

/// Bytes that are kept: several times what is told in the end, since a progress bar may fill them.
const KEPT: usize = 16 * 1024;
/// How long what is still in the pipe is waited for when all who wrote are gone: whoever reads the agent's own stderr may
/// be slow.
const PATIENCE: Duration = Duration::from_secs(2);

/// The stderr of one round's processes.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Gone once all processes have been started: the pipe ends with the last of them.
    writer: Option<PipeWriter>,
    kept: Arc<Mutex<VecDeque<u8>>>,
    ended: Receiver<()>,
}

impl Tail {
    /// Begins to pass on. `None` where processes are to write to the agent's stderr itself.
    pub(crate) fn begin() -> std::io::Result<Option<Tail>> {
        if std::io::stderr().is_terminal() {
            return Ok(None);
        }
        let (mut reader, writer) = std::io::pipe()?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (end, ended) = channel();
        let into = Arc::clone(&kept);
        let pass = move || {
            let mut chunk = [0; 8192];
            loop {
                match reader.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(n) => keep(&into, chunk.get(..n).unwrap_or_default()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            // Nobody may be waiting any more.
            let _ = end.send(());
        };
        std::thread::Builder::new().name("stderr".to_owned()).spawn(pass)?;
        Ok(Some(Tail { writer: Some(writer), kept, ended }))
    }

    /// The stderr of a process to start.
    pub(crate) fn stderr(&self) -> std::io::Result<Stdio> {
        self.writer.as_ref().map_or(Ok(Stdio::inherit()), |w| w.try_clone().map(Stdio::from))
    }

    /// No further process is started.
    pub(crate) fn close(&mut self) {
        self.writer = None;
    }

    /// Waits until all has been passed on, and gives the last lines. Nobody may write any more.
    pub(crate) fn finish(mut self) -> String {
        self.close();
        let _ = self.ended.recv_timeout(PATIENCE);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        last_lines(&String::from_utf8_lossy(kept.make_contiguous()))
    }
}

/// Passes a piece on and keeps it. A stderr that nobody reads is the container's affair, as without the agent.
fn keep(kept: &Mutex<VecDeque<u8>>, piece: &[u8]) {
    let _ = std::io::stderr().write_all(piece);
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(piece);
    let over = kept.len().saturating_sub(KEPT);
    kept.drain(..over);
}
