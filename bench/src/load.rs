//! The load on a peer, and its cost: creates, lists, and one change delivered to many watchers.
//!
//! Latency is measured at the client. CPU is the server's, etcd included, per unit of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use crate::figures::Sample;
use crate::peer::Peer;

/// Creates `count` objects with `writers` connections; each waits for its answer before it sends the next.
pub async fn create(peer: &Peer, prefix: &str, count: usize, writers: usize) -> Result<Sample> {
    let next = Arc::new(AtomicUsize::new(0));
    let before = peer.usage()?;
    let started = Instant::now();
    let tasks = (0..writers).map(|_| {
        let (next, kind, prefix, client) = (Arc::clone(&next), peer.kind, prefix.to_owned(), peer.client());
        tokio::spawn(async move {
            let client = client?;
            let mut latencies = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let body = serde_json::to_vec(&kind.object(&format!("{prefix}-{number}")))?;
                let request = http::Request::post(kind.collection())
                    .header("content-type", "application/json")
                    .body(body)?;
                let sent = Instant::now();
                client.request_text(request).await?;
                latencies.push(sent.elapsed());
            }
        })
    });
    let mut latencies = Vec::with_capacity(count);
    for done in try_join_all(tasks).await? {
        latencies.extend(done?);
    }
    Sample::new(latencies, count, started.elapsed(), peer.usage()?.cpu - before.cpu)
}

/// Waits until the collection has not changed for a second.
pub async fn settle(peer: &Peer) -> Result<()> {
    let client = peer.client()?;
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut last = (newest(peer, &client).await?, Instant::now());
    while last.1.elapsed() < Duration::from_secs(1) {
        if Instant::now() > deadline {
            bail!("the objects never came to rest");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = newest(peer, &client).await?;
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    Ok(())
}

async fn newest(peer: &Peer, client: &kube::Client) -> Result<String> {
    let uri = format!("{}?limit=1", peer.kind.collection());
    let first: Value = serde_json::from_slice(&read_all(client, &uri).await?)?;
    Ok(first["metadata"]["resourceVersion"].as_str().context("a list without a resourceVersion")?.to_owned())
}

/// Lists everything `times` times over one connection.
pub async fn list(peer: &Peer, query: &str, times: usize) -> Result<Sample> {
    let client = peer.client()?;
    let uri = format!("{}{query}", peer.kind.collection());
    read_all(&client, &uri).await?;
    let before = peer.usage()?;
    let started = Instant::now();
    let mut latencies = Vec::new();
    for _ in 0..times {
        let sent = Instant::now();
        read_all(&client, &uri).await?;
        latencies.push(sent.elapsed());
    }
    Sample::new(latencies, times, started.elapsed(), peer.usage()?.cpu - before.cpu)
}

/// Lists everything once, in pages.
pub async fn list_pages(peer: &Peer, limit: usize) -> Result<Sample> {
    let client = peer.client()?;
    let before = peer.usage()?;
    let started = Instant::now();
    let (mut token, mut pages) = (String::new(), Vec::new());
    loop {
        let uri = format!("{}?limit={limit}&continue={token}", peer.kind.collection());
        let sent = Instant::now();
        let body = read_all(&client, &uri).await?;
        // Parsing the JSON is the client's work, and takes longer than receiving the page.
        pages.push(sent.elapsed());
        let body: Value = serde_json::from_slice(&body)?;
        match body["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => token = next.replace('+', "%2B").replace('=', "%3D"),
            _ => break,
        }
    }
    let count = pages.len();
    Sample::new(pages, count, started.elapsed(), peer.usage()?.cpu - before.cpu)
}

/// `watchers` watches, each on a connection of its own; `changes` changes one after the other, each delivered to all.
pub async fn fan_out(peer: &Peer, watchers: usize, changes: usize) -> Result<Sample> {
    let client = peer.client()?;
    let first: Value =
        serde_json::from_slice(&read_all(&client, &format!("{}?limit=1", peer.kind.collection())).await?)?;
    let revision =
        first["metadata"]["resourceVersion"].as_str().context("a list without a resourceVersion")?.to_owned();
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    // Not all handshakes at once: the peers' handshake limits are not measured here.
    let handshakes = Arc::new(Semaphore::new(32));
    let mut tasks = Vec::new();
    for _ in 0..watchers {
        let uri = format!("{}?watch=1&resourceVersion={revision}", peer.kind.collection());
        let (client, sender, handshakes) = (peer.client()?, sender.clone(), Arc::clone(&handshakes));
        tasks.push(tokio::spawn(watch(client, uri, handshakes, sender)));
    }
    for _ in 0..watchers {
        arrivals.recv().await.context("a watcher ended")?;
    }
    let before = peer.usage()?;
    let started = Instant::now();
    let mut latencies = Vec::new();
    for change in 0..changes {
        let sent = Instant::now();
        let body = format!(r#"{{"metadata":{{"labels":{{"change":"{change}"}}}}}}"#);
        let request = http::Request::patch(format!("{}/single-0", peer.kind.collection()))
            .header("content-type", "application/merge-patch+json")
            .body(body.into_bytes())?;
        client.request_text(request).await?;
        for _ in 0..watchers {
            let arrived = tokio::time::timeout(Duration::from_secs(30), arrivals.recv()).await;
            let arrived =
                arrived.context("a change did not reach every watcher")?.context("a watcher ended")?;
            latencies.push(arrived.duration_since(sent));
        }
    }
    let sample =
        Sample::new(latencies, changes * watchers, started.elapsed(), peer.usage()?.cpu - before.cpu)?;
    tasks.iter().for_each(|task| task.abort());
    Ok(sample.with_memory(peer.usage()?))
}

/// Reports once when the watch is established, then the arrival of every event.
async fn watch(
    client: kube::Client,
    uri: String,
    handshakes: Arc<Semaphore>,
    arrivals: mpsc::UnboundedSender<Instant>,
) -> Result<()> {
    let permit = handshakes.acquire_owned().await?;
    let response = client.send(http::Request::get(uri).body(kube::client::Body::empty())?).await?;
    if !response.status().is_success() {
        bail!("watch answered {}", response.status());
    }
    drop(permit);
    arrivals.send(Instant::now())?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let now = Instant::now();
        if let Ok(data) = frame?.into_data() {
            for _ in data.iter().filter(|byte| **byte == b'\n') {
                arrivals.send(now)?;
            }
        }
    }
    Ok(())
}

async fn read_all(client: &kube::Client, uri: &str) -> Result<bytes::Bytes> {
    let response = client.send(http::Request::get(uri).body(kube::client::Body::empty())?).await?;
    if !response.status().is_success() {
        bail!("{uri} answered {}", response.status());
    }
    Ok(response.into_body().collect().await?.to_bytes())
}
