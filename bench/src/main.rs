//! Measures the cost and speed of Causeway, in parts: `api`, `fleet`, `streams` and `audit`. Run it through
//! `bench/run`.
//!
//! `api`: our API server against kube-apiserver on etcd: lists, creates, watch fan-out, memory, CPU. Each peer is started
//! alone, measured by the same client code, and stopped. Prints one table per figure with ratios. Its arguments:
//! `[--objects N] [--watchers N] [--peers NAME,...]`; the peers are `configmap`, `custom` (both kube-apiserver), `sqlite`
//! and `etcd` (both ours). `fleet`, `streams`, `audit`: see there. Without the name of a part all are run as they are by default.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod audit;
mod fleet;
mod streams;

mod figures;
mod load;
mod peer;
mod results;

use anyhow::{Context, Result};

use figures::{Figures, print_table};
use peer::{Peer, PeerKind};

/// As in the edges and the cloud: twenty thousand edges in one process take more memory with the C library's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        None => {
            run_api(&[]).await?;
            fleet::run(&[]).await?;
            streams::run().await?;
            audit::run(&[]).await
        }
        Some((part, more)) if part == "api" => run_api(more).await,
        Some((part, more)) if part == "fleet" => fleet::run(more).await,
        Some((part, _)) if part == "streams" => streams::run().await,
        Some((part, more)) if part == "audit" => audit::run(more).await,
        Some((part, more)) if part == audit::COLLECTOR => audit::collect(more),
        Some((other, _)) => {
            let usages = [API_USAGE, fleet::USAGE, streams::USAGE, audit::USAGE].join(", or ");
            anyhow::bail!("no part {other}; usage: {usages}")
        }
    }
}

const API_USAGE: &str = "bench api [--objects N] [--watchers N] [--peers NAME,...]";

async fn run_api(arguments: &[String]) -> Result<()> {
    let size = Size::from_arguments(arguments)?;
    println!(
        "{} objects, {} watchers, {} cores; every peer alone on the machine, TLS to each, fsync on each write",
        size.objects,
        size.watchers,
        std::thread::available_parallelism()?
    );
    let mut all = Vec::new();
    for kind in size.peers.iter().copied() {
        eprintln!("bench: {} ...", kind.name());
        match measure(kind, &size).await {
            Ok(figures) => all.push(figures),
            // The failure of a peer is printed, and the remaining peers are still compared.
            Err(error) => println!("{}: not measured: {error:#}", kind.name()),
        }
    }
    print_table(&all);
    results::append(&figures::result_lines(&all))
}

pub struct Size {
    pub objects: usize,
    pub watchers: usize,
    pub peers: Vec<PeerKind>,
}

impl Size {
    fn from_arguments(arguments: &[String]) -> Result<Size> {
        let mut size = Size { objects: 10_000, watchers: 1_000, peers: PeerKind::ALL.to_vec() };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { anyhow::bail!("usage: {API_USAGE}") };
            match name.as_str() {
                "--objects" => size.objects = value.parse()?,
                "--watchers" => size.watchers = value.parse()?,
                "--peers" => {
                    let found = |name: &str| PeerKind::ALL.into_iter().find(|kind| kind.short() == name);
                    let peers = value.split(',').map(|name| found(name).context("no such peer"));
                    size.peers = peers.collect::<Result<_>>()?;
                }
                _ => anyhow::bail!("unknown argument {name}; usage: {API_USAGE}"),
            }
        }
        Ok(size)
    }
}

async fn measure(kind: PeerKind, size: &Size) -> Result<Figures> {
    let peer = Peer::start(kind).await?;
    let idle = peer.usage()?;
    let single = load::create(&peer, "single", 300, 1).await?;
    let many = load::create(&peer, "object", size.objects - 300, 64).await?;
    // Our controller writes a status into every new object; a list beside that would measure both.
    load::settle(&peer).await?;
    let list = load::list(&peer, "", 20).await?;
    let paged = load::list_pages(&peer, 500).await?;
    let loaded = peer.usage()?;
    let fan_out = load::fan_out(&peer, size.watchers, 50).await?;
    Ok(Figures { name: kind.name(), ours: kind.is_ours(), idle, loaded, single, many, list, paged, fan_out })
}
