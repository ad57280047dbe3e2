//! Measures a store: commits per second, lists, gets, delivery to watchers. Prints one line per figure.
//!
//! `cargo run --release -p causeway-store --example measure -- sqlite=/tmp/measure.db`
//! or `-- etcd=http://127.0.0.1:2379,...`. The place must be empty. Values are about 700 bytes, like our objects.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use causeway_store::{ListRange, Op, Store, StoreSpec, WatchSignal};

const RECORDS: usize = 10_000;
const SPAN: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<()> {
    let spec = std::env::args().nth(1).context("usage: measure sqlite=PATH|etcd=ENDPOINTS")?;
    let spec = match spec.split_once('=') {
        Some(("sqlite", path)) => StoreSpec::Sqlite { path: path.into() },
        Some(("etcd", endpoints)) => StoreSpec::etcd(endpoints.split(',').map(str::to_owned).collect(), None),
        _ => bail!("usage: measure sqlite=PATH|etcd=ENDPOINTS"),
    };
    let store = Store::open(spec).await?;
    for writers in [1, 8, 64, 256] {
        println!("commits/s, {writers} writers: {:.0}", commits(&store, writers).await?);
    }
    fill(&store).await?;
    lists(&store).await?;
    println!("gets/s, 16 readers: {:.0}", gets(&store).await?);
    println!("watch, commit to event: {:?} (median of 200)", delivery(&store).await?);
    store.close().await?;
    Ok(())
}

fn value(name: usize) -> Bytes {
    let padding = "x".repeat(600);
    Bytes::from(format!(
        r#"{{"metadata":{{"name":"thing-{name:05}","uid":"{name:032}"}},"padding":"{padding}"}}"#
    ))
}

async fn commits(store: &Store, writers: usize) -> Result<f64> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut count = 0;
                while started.elapsed() < SPAN {
                    store.put(&format!("commits/{writer}/{}", count % 100), value(count)).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

async fn fill(store: &Store) -> Result<()> {
    for first in (0..RECORDS).step_by(100) {
        let ops = (first..first + 100).map(|n| Op::Put { key: format!("things/{n:05}"), value: value(n) });
        store.commit(ops.collect()).await?;
    }
    Ok(())
}

async fn lists(store: &Store) -> Result<()> {
    let at = store.list("things/", ListRange { limit: Some(1), ..ListRange::default() }).await?.revision;
    println!(
        "list of {RECORDS}, now: {:?} (best of 20, median)",
        list_time(store, ListRange::default()).await?
    );
    for n in (0..RECORDS).step_by(20) {
        store.put(&format!("things/{n:05}"), value(n)).await?;
    }
    let then = ListRange { at: Some(at), ..ListRange::default() };
    println!("list of {RECORDS}, 500 writes ago: {:?}", list_time(store, then).await?);
    let started = Instant::now();
    let mut page = ListRange { limit: Some(500), ..ListRange::default() };
    let mut pages = 0;
    loop {
        let listing = store.list("things/", page).await?;
        pages += 1;
        match listing.records.last() {
            Some(last) if listing.remaining > 0 => {
                page = ListRange {
                    at: Some(listing.revision),
                    after: Some(last.key.to_string()),
                    limit: Some(500),
                };
            }
            _ => break,
        }
    }
    println!("list of {RECORDS}, {pages} pages: {:?}", started.elapsed());
    Ok(())
}

/// The best and the middle of twenty.
async fn list_time(store: &Store, page: ListRange) -> Result<(Duration, Duration)> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let listing = store.list("things/", page.clone()).await?;
        times.push(started.elapsed());
        anyhow::ensure!(listing.records.len() == RECORDS, "{} records", listing.records.len());
    }
    times.sort();
    Ok((times[0], times[times.len() / 2]))
}

async fn gets(store: &Store) -> Result<f64> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..16)
        .map(|reader| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut count: usize = reader;
                while started.elapsed() < SPAN {
                    store.get(&format!("things/{:05}", count * 7919 % RECORDS)).await?;
                    count += 1;
                }
                anyhow::Ok(count - reader)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

async fn delivery(store: &Store) -> Result<Duration> {
    let mut watch = store.watch("delivery/", store.revision().await?).await?;
    let mut times = Vec::new();
    for n in 0..200 {
        let started = Instant::now();
        store.put("delivery/x", value(n)).await?;
        while !matches!(watch.next().await?, WatchSignal::Event(_)) {}
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[100])
}
