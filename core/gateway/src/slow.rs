//! A connection whose peer has to read what is written to it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Fails a write that can't go on for so long. Without it, a peer that never reads would hold its connection for ever.
#[derive(Debug)]
pub(crate) struct Bounded<S> {
    inner: S,
    limit: Duration,
    /// Set while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Bounded { inner, limit, waiting: None }
    }

    fn bound<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        if waiting.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.bound(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.bound(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.bound(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_reads_slowly_is_borne_and_one_that_does_not_is_not() {
        let (mut peer, ours) = duplex(16);
        let mut ours = Bounded::new(ours, Duration::from_secs(2));
        let reading = tokio::spawn(async move {
            let mut buf = [0; 16];
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                peer.read_exact(&mut buf).await.unwrap();
            }
            peer
        });
        ours.write_all(&[1; 160]).await.unwrap();
        let _peer = reading.await.unwrap();
        let error = ours.write_all(&[1; 160]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
