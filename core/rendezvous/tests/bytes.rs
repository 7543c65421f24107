//! The server by bytes: what torch's client sends and reads, and what nobody should send.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::time::Duration;

use eto_rendezvous::wire::{MAGIC, text};
use eto_rendezvous::{Limits, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far more than anything here takes; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(30);

async fn start(limits: Limits) -> SocketAddr {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), limits).await.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.serve());
    address
}

struct Client(TcpStream);

impl Client {
    async fn join(address: SocketAddr) -> Client {
        let mut client = Client(TcpStream::connect(address).await.unwrap());
        client.send(&[&[0], MAGIC.to_le_bytes().as_slice()].concat()).await;
        client
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    async fn takes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        tokio::time::timeout(LIMIT, self.0.read_exact(&mut bytes)).await.expect("a reply").unwrap();
        bytes
    }

    /// The reply to a request.
    async fn ask<const N: usize>(&mut self, request: &[u8]) -> [u8; N] {
        self.send(request).await;
        self.takes().await
    }

    async fn is_closed(&mut self) -> bool {
        matches!(tokio::time::timeout(LIMIT, self.0.read(&mut [0; 8])).await.expect("an end"), Ok(0) | Err(_))
    }
}

fn request(operation: u8, parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().fold(vec![operation], |all, part| [all, text(part)].concat())
}

fn keys(operation: u8, keys: &[&[u8]]) -> Vec<u8> {
    let head = [&[operation], (keys.len() as u64).to_le_bytes().as_slice()].concat();
    keys.iter().fold(head, |all, key| [all, text(key)].concat())
}

#[tokio::test]
async fn each_operation_has_its_reply() {
    let mut c = Client::join(start(Limits::default()).await).await;
    assert_eq!(c.ask(&[&[13], 77u32.to_le_bytes().as_slice()].concat()).await, 77u32.to_le_bytes());
    c.send(&request(1, &[b"a", b"one"])).await;
    assert_eq!(c.ask::<11>(&request(3, &[b"a"])).await, text(b"one")[..]);
    assert_eq!(c.ask::<9>(&request(2, &[b"c", b"", b"x"])).await, text(b"x")[..]);
    let add = [request(4, &[b"n"]), 5i64.to_le_bytes().to_vec()].concat();
    assert_eq!(c.ask(&add).await, 5i64.to_le_bytes());
    assert_eq!(c.ask(&add).await, 10i64.to_le_bytes());
    assert_eq!(c.ask(&keys(5, &[b"a", b"n"])).await, [0]);
    assert_eq!(c.ask(&keys(5, &[b"a", b"none"])).await, [1]);
    assert_eq!(c.ask(&keys(6, &[b"a"])).await, [0]);
    assert_eq!(c.ask(&[7]).await, 3i64.to_le_bytes());
    assert_eq!(c.ask(&request(8, &[b"c"])).await, 1i64.to_le_bytes());
    assert_eq!(c.ask(&request(8, &[b"c"])).await, 0i64.to_le_bytes());
    c.send(&request(9, &[b"a", b"+"])).await;
    c.send(&[keys(11, &[]), Vec::new()].concat()).await;
    let pair = [&[11u8], 1u64.to_le_bytes().as_slice(), &text(b"m"), &text(b"22")].concat();
    c.send(&pair).await;
    let got: [u8; 22] = c.ask(&keys(10, &[b"a", b"m"])).await;
    assert_eq!(got[..], [text(b"one+"), text(b"22")].concat());
}

#[tokio::test]
async fn a_wait_ends_with_the_key_or_with_its_cancel() {
    let address = start(Limits::default()).await;
    let (mut waits, mut sets) = (Client::join(address).await, Client::join(address).await);
    waits.send(&keys(6, &[b"k"])).await;
    assert_eq!(waits.ask(&[12]).await, [1], "cancelled");
    waits.send(&keys(6, &[b"k", b"l"])).await;
    sets.send(&request(1, &[b"k", b""])).await;
    sets.send(&request(1, &[b"l", b""])).await;
    assert_eq!(waits.takes().await, [0]);
    // A cancel that crosses the answer is answered too, as torch's client expects.
    assert_eq!(waits.ask(&[12]).await, [1]);
}

#[tokio::test]
async fn requests_may_come_in_any_pieces() {
    let mut c = Client::join(start(Limits::default()).await).await;
    let all = [request(1, &[b"key", b"value"]), request(3, &[b"key"])].concat();
    for byte in all {
        c.send(&[byte]).await;
    }
    assert_eq!(c.takes::<13>().await, text(b"value")[..]);
}

#[tokio::test]
async fn strangers_and_greedy_clients_are_put_out_and_others_go_on() {
    let limits = Limits { bytes: 2000, introduction: Duration::from_millis(300), ..Limits::default() };
    let address = start(limits).await;
    let mut good = Client::join(address).await;
    good.send(&request(1, &[b"k", b"v"])).await;
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0, 1, 2, 3, 4], request(3, &[b"k"]), vec![]] {
        let mut stranger = Client(TcpStream::connect(address).await.unwrap());
        stranger.send(&bytes).await;
        assert!(stranger.is_closed().await, "{bytes:?}");
    }
    for bytes in [
        [&[1u8], u64::MAX.to_le_bytes().as_slice()].concat(),
        request(1, &[b"big", &[7; 3000]]),
        vec![99],
        [request(1, &[b"n", b"x"]), request(4, &[b"n"]), 1i64.to_le_bytes().to_vec()].concat(),
    ] {
        let mut greedy = Client::join(address).await;
        greedy.send(&bytes).await;
        assert!(greedy.is_closed().await, "{:?}", &bytes[..9.min(bytes.len())]);
    }
    assert_eq!(good.ask::<9>(&request(3, &[b"k"])).await, text(b"v")[..]);
}

#[tokio::test]
async fn half_requests_of_all_connections_have_a_bound() {
    let address = start(Limits { received: 100_000, ..Limits::default() }).await;
    let half = [&[1u8], text(b"k").as_slice(), &80_000u64.to_le_bytes(), &vec![0; 60_000]].concat();
    let mut first = Client::join(address).await;
    first.send(&half).await;
    // The second is put out, if not by the first byte that is too many.
    let mut second = Client::join(address).await;
    let _ = second.0.write_all(&half).await;
    assert!(second.is_closed().await);
    first.send(&vec![0; 20_000]).await;
    assert_eq!(first.ask(&keys(5, &[b"k"])).await, [0]);
}

#[tokio::test]
async fn a_waiter_that_goes_away_is_forgotten() {
    let address = start(Limits { connections: 2, ..Limits::default() }).await;
    for _ in 0..20 {
        let mut waits = Client::join(address).await;
        waits.send(&keys(6, &[b"never"])).await;
    }
    // All of them have had their turn, two at a time, and there is room for one more.
    let mut c = Client::join(address).await;
    assert_eq!(c.ask::<4>(&[&[13], 1u32.to_le_bytes().as_slice()].concat()).await, 1u32.to_le_bytes());
}
