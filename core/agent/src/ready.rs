//! `eto-agent ready`: a probe that asks the agent of its own pod, whatever network the pod is in.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::memory::Memory;

/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Enough for the head of an answer.
const HEAD: u64 = 1024;

/// Whether processes of the round in force run in this pod, as `/readyz` says. `folder` is the agent's, as in its settings.
///
/// # Errors
/// No agent answers.
pub fn ready(folder: Option<&Path>) -> std::io::Result<bool> {
    let url = Memory::open(folder)?.api()?;
    let address = url.trim().strip_prefix("http://").and_then(|address| address.parse::<SocketAddr>().ok());
    let address = address.ok_or_else(|| Error::other(format!("`{url}` is not the address of an agent")))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(HEAD).read_to_end(&mut answer)?;
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned);
    match status.as_deref() {
        Some("200") => Ok(true),
        Some("503") => Ok(false),
        other => Err(Error::other(format!("the agent answered {}", other.unwrap_or("nothing")))),
    }
}
