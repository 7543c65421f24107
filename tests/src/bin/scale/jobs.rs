//! The jobs, and the exporter of the metric that they are sized by.
//!
//! The jobs have no template: they wait for one, and are sized meanwhile. So there are decisions and no pods, and what is
//! measured is the way of a decision, as it is for an HPA or a `ScaledObject` without pods.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use eto_api::ElasticJob;
use eto_e2e::Outcome;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(crate) const NAMESPACE: &str = "scale";
/// What one worker may carry.
const EACH: u32 = 10;
/// Sizes at half and at twice the load that 8 workers are right for.
pub(crate) const LOW: u32 = 4;
pub(crate) const HIGH: u32 = 16;

fn name(number: usize) -> String {
    format!("job-{number:05}")
}

/// Makes that many jobs, each with an External metric of its own: one name, another selector.
pub(crate) async fn create(api: &Api<ElasticJob>, from: usize, to: usize) -> Outcome {
    let make = |number: usize| async move {
        let name = name(number);
        let rates = json!({"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 900, "periodSeconds": 1}]});
        let job: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "replicas": LOW, "minReplicas": 1, "maxReplicas": 64, "frameworkType": "PyTorch",
                "scalingPolicy": {
                    "minReplicas": 1, "maxReplicas": 64,
                    "metrics": [{"type": "External", "external": {
                        "metric": {"name": "queue_depth", "selector": {"matchLabels": {"elastic_job": name}}},
                        "target": {"type": "AverageValue", "averageValue": EACH.to_string()},
                    }}],
                    "behavior": {"scaleUp": rates, "scaleDown": rates},
                },
            },
        }))?;
        api.create(&PostParams::default(), &job).await?;
        Ok::<_, eto_e2e::Failure>(())
    };
    stream::iter(from..to).map(make).buffer_unordered(16).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// An exporter with one series for each job; all have the same value.
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    jobs: Arc<AtomicU32>,
    size: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Load {
    pub(crate) async fn start() -> Outcome<Load> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (jobs, size) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(LOW)));
        let shown = (Arc::clone(&jobs), Arc::clone(&size));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let page = page(shown.0.load(Ordering::Relaxed), shown.1.load(Ordering::Relaxed) * EACH);
                tokio::spawn(answer(stream, page));
            }
        });
        Ok(Load { address, jobs, size, task })
    }

    /// Shows that many jobs from now on.
    pub(crate) fn jobs(&self, count: usize) {
        self.jobs.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// From now on each job has the load that this size is right for.
    pub(crate) fn ask_for(&self, size: u32) {
        self.size.store(size, Ordering::Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn page(jobs: u32, value: u32) -> String {
    let mut page = String::from("# TYPE queue_depth gauge\n");
    for number in 0..jobs {
        let name = name(usize::try_from(number).unwrap_or(0));
        let _ = writeln!(page, "queue_depth{{namespace=\"{NAMESPACE}\",elastic_job=\"{name}\"}} {value}");
    }
    page
}

async fn answer(mut stream: TcpStream, page: String) {
    let mut request = Vec::new();
    let mut part = [0_u8; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(n) if n > 0 => request.extend_from_slice(&part[..n]),
            _ => return,
        }
    }
    let length = page.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // A scraper that has gone away is no matter of ours.
    let _ = stream.write_all((head + &page).as_bytes()).await;
}
