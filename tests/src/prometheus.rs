//! A real Prometheus that scrapes the exporter once a second.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Failure, Outcome};

/// A Prometheus process; ended when dropped.
pub struct Prometheus {
    pub address: SocketAddr,
    target: SocketAddr,
    process: Child,
    directory: TempDir,
}

impl Prometheus {
    pub async fn start(target: SocketAddr) -> Outcome<Prometheus> {
        let address = free_port()?;
        let directory = TempDir::new()?;
        let process = spawn(address, target, &directory)?;
        let prometheus = Prometheus { address, target, process, directory };
        prometheus.ready().await?;
        Ok(prometheus)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the process; [`Prometheus::resume`] starts it again on the same port with the same data.
    pub fn stop(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    pub async fn resume(&mut self) -> Outcome {
        self.process = spawn(self.address, self.target, &self.directory)?;
        self.ready().await
    }

    async fn ready(&self) -> Outcome {
        let waiting = async {
            while !get(self.address, "/-/ready").await.is_ok_and(|a| a.starts_with("HTTP/1.1 200")) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting)
            .await
            .map_err(|_| Failure("Prometheus did not become ready within 60 s".into()))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn spawn(address: SocketAddr, target: SocketAddr, directory: &TempDir) -> Outcome<Child> {
    let config = directory.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
         scrape_configs:\n\
         - {{job_name: cadvisor, honor_labels: true, static_configs: [{{targets: ['{target}']}}]}}\n"
    );
    std::fs::write(&config, text)?;
    let log = std::fs::File::options().create(true).append(true).open(directory.path().join("log"))?;
    let process = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|e| Failure(format!("prometheus can't be started ({e}); `tools/setup.sh prometheus` installs it")))?;
    Ok(process)
}

/// A port of this machine that nobody listens on.
pub fn free_port() -> Outcome<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A plain GET: status line, headers and body, as they came.
pub async fn get(address: SocketAddr, path: &str) -> Outcome<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
