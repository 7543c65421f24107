//! The least that a controller can do, as a measure for one that does more: once a second one query for all jobs, then a
//! PATCH of `scale` for each job whose size is not what the query asks for, 16 at a time. No status, no events, no policy,
//! no limits.
//!
//! `floor PROMETHEUS_ADDRESS NAMESPACE`, with `KUBECONFIG` in the environment. `scale` starts it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: a program of the measurements")]

use std::collections::HashMap;
use std::time::Duration;

use eto_api::ElasticJob;
use eto_e2e::{Failure, Outcome};
use futures::{StreamExt, stream};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What one worker may carry, and the metric, as in the jobs that `scale` makes.
const EACH: f64 = 10.0;
const METRIC: &str = "queue_depth";
const AT_ONCE: usize = 16;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [prometheus, namespace] = arguments.as_slice() else {
        eprintln!("usage: floor PROMETHEUS_ADDRESS NAMESPACE");
        std::process::exit(2);
    };
    if let Err(Failure(why)) = follow(prometheus, namespace).await {
        eprintln!("floor: {why}");
        std::process::exit(1);
    }
}

async fn follow(prometheus: &str, namespace: &str) -> Outcome {
    let jobs: Api<ElasticJob> = Api::namespaced(Client::try_default().await?, namespace);
    let all = jobs.list(&ListParams::default()).await?;
    let mut sizes: HashMap<String, i64> =
        all.items.iter().map(|j| (j.name_any(), j.spec.replicas.unwrap_or(0))).collect();
    drop(all);
    println!("ready");
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let wanted = query(prometheus).await?;
        let changed: Vec<(String, i64)> =
            wanted.into_iter().filter(|(job, size)| sizes.get(job) != Some(size)).collect();
        let write = |(job, size): (String, i64)| {
            let jobs = &jobs;
            async move {
                let patch = Patch::Merge(json!({"spec": {"replicas": size}}));
                jobs.patch_scale(&job, &PatchParams::default(), &patch).await.map(|_| (job, size))
            }
        };
        let mut written = stream::iter(changed).map(write).buffer_unordered(AT_ONCE);
        while let Some(outcome) = written.next().await {
            match outcome {
                Ok((job, size)) => drop(sizes.insert(job, size)),
                // Tried again in a second.
                Err(error) => eprintln!("floor: {error}"),
            }
        }
    }
}

/// The size that each job should have.
async fn query(prometheus: &str) -> Outcome<Vec<(String, i64)>> {
    let mut stream = tokio::net::TcpStream::connect(prometheus).await?;
    // Of HTTP/1.0, so that the answer is not chunked.
    stream
        .write_all(format!("GET /api/v1/query?query={METRIC} HTTP/1.0\r\nHost: {prometheus}\r\n\r\n").as_bytes())
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let body = answer.windows(4).position(|w| w == b"\r\n\r\n").map(|at| &answer[at + 4..]);
    let body: Value = serde_json::from_slice(body.ok_or("an answer without a body")?)?;
    let rows = body.pointer("/data/result").and_then(Value::as_array).ok_or("an answer without a result")?;
    let size = |row: &Value| {
        let job = row.pointer("/metric/elastic_job")?.as_str()?.to_owned();
        let value: f64 = row.pointer("/value/1")?.as_str()?.parse().ok()?;
        #[allow(clippy::cast_possible_truncation)]
        let size = (value / EACH).ceil().clamp(1.0, 64.0) as i64;
        Some((job, size))
    };
    Ok(rows.iter().filter_map(size).collect())
}
