//! Plays Prometheus: one answer with the CPU use of every worker, one with the times of its samples, both rendered once.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::jobs::{self, WORKERS};

/// When the answers were made, in seconds since the epoch.
const EVALUATED: u64 = 1_800_000_000;

/// Prints its port and serves until its standard input ends.
pub(crate) fn serve(count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("{}", listener.local_addr().expect("bound").port());
    let values: Arc<str> = answer(count, &|job, worker| format!("{:.4}", jobs::cores(job, worker))).into();
    let times: Arc<str> = answer(count, &|_, _| (EVALUATED - 5).to_string()).into();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (values, times) = (Arc::clone(&values), Arc::clone(&times));
            std::thread::spawn(move || converse(stream, &values, &times));
        }
    });
    // Whoever started this holds the other end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn answer(count: usize, value: &dyn Fn(usize, usize) -> String) -> String {
    let mut text = String::from(r#"{"status":"success","data":{"resultType":"vector","result":["#);
    for job in 0..count {
        let (namespace, name) = (jobs::namespace(job), jobs::name(job));
        for worker in 0..WORKERS {
            let comma = if job + worker > 0 { "," } else { "" };
            let pod = jobs::pod_name(&name, worker);
            let _ = write!(
                text,
                r#"{comma}{{"metric":{{"namespace":"{namespace}","pod":"{pod}"}},"value":[{EVALUATED}.123,"{}"]}}"#,
                value(job, worker)
            );
        }
    }
    text.push_str("]}}");
    text
}

/// Answers requests on a connection until it is closed.
fn converse(stream: TcpStream, values: &str, times: &str) {
    let mut writer = stream.try_clone().expect("a socket");
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut query = vec![0; length];
        if reader.read_exact(&mut query).is_err() {
            return;
        }
        let body = if query.windows(9).any(|w| w == b"timestamp") { times } else { values };
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        if writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body.as_bytes())).is_err() {
            return;
        }
    }
}
