//! What processes use, and what etcd counts of itself.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) struct Meter {
    pub(crate) etcd: u32,
    pub(crate) gateway: u32,
    /// Port on which etcd serves its metrics without TLS.
    pub(crate) metrics: u16,
}

/// What was seen at one moment.
pub(crate) struct Look {
    at: Instant,
    etcd: Usage,
    gateway: Usage,
    puts: f64,
    renewals: f64,
    received: f64,
    stored: f64,
}

struct Usage {
    mib: f64,
    cpu_s: f64,
}

impl Meter {
    pub(crate) async fn look(&self) -> Look {
        let page = self.page().await;
        let sum = |name: &str, with: &str| -> f64 {
            let lines = page.lines().filter(|l| l.starts_with(name) && l.contains(with));
            lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Look {
            at: Instant::now(),
            etcd: usage(self.etcd),
            gateway: usage(self.gateway),
            puts: sum("etcd_mvcc_put_total", ""),
            renewals: sum("etcd_debugging_lease_renewed_total", ""),
            received: sum("etcd_network_client_grpc_received_bytes_total", ""),
            stored: sum("etcd_mvcc_db_total_size_in_bytes", ""),
        }
    }

    async fn page(&self) -> String {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.metrics)).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }
}

impl Look {
    /// What happened between the two.
    pub(crate) fn since(&self, before: &Look) -> String {
        format!(
            "{:5.1} s; etcd: {} writes, {} lease renewals, {:.1} KiB in, {:.2} s of CPU; gateway: {:.2} s of CPU; {}",
            (self.at - before.at).as_secs_f64(),
            self.puts - before.puts,
            self.renewals - before.renewals,
            (self.received - before.received) / 1024.0,
            self.etcd.cpu_s - before.etcd.cpu_s,
            self.gateway.cpu_s - before.gateway.cpu_s,
            self.memory(),
        )
    }

    pub(crate) fn memory(&self) -> String {
        format!(
            "etcd {:.0} MiB, its store {:.1} MiB, gateway {:.0} MiB",
            self.etcd.mib,
            self.stored / 1024.0 / 1024.0,
            self.gateway.mib
        )
    }
}

fn usage(pid: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib: f64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name in parentheses: utime and stime are the 12th and 13th, in hundredths of a second.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace();
    let cpu: f64 = fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
    Usage { mib: kib / 1024.0, cpu_s: cpu / 100.0 }
}

/// Load average of the last minute.
pub(crate) fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().unwrap_or_default().to_owned()
}

/// Median, tail and worst of durations.
pub(crate) struct Spread {
    p50: Duration,
    p99: Duration,
    most: Duration,
}

impl Spread {
    pub(crate) fn of(all: &[Duration]) -> Self {
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        // The smallest that so many of a hundred are not above.
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        let at = |percent| at(percent).unwrap_or_default();
        Spread { p50: at(50), p99: at(99), most: at(100) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1000.0;
        write!(f, "p50 {:7.1} ms  p99 {:7.1} ms  max {:7.1} ms", ms(self.p50), ms(self.p99), ms(self.most))
    }
}
