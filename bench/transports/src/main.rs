//! Measures QUIC and TCP transports against each other, to choose what the channel is built on.
//!
//! One program for both ends and for the lossy link between them; `run` starts them in network namespaces.
//! The result is in docs/decisions/0001-transports.md.

mod h2_mux;
mod identity;
mod link;
mod measure;
mod pool;
mod quic;
mod relay;
mod tls;
mod usage;
mod work;
mod yamux_mux;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use identity::Identity;
use link::{Transport, Tuning};
use measure::{Bench, Measurement};

#[derive(Parser)]
enum Command {
    /// Make the certificate that both ends use.
    Identity { folder: PathBuf },
    /// Serve one transport until killed. The next port number tells what the server has used.
    Server {
        transport: Transport,
        listen: SocketAddr,
        #[arg(long)]
        identity: PathBuf,
        #[command(flatten)]
        tuning: Tuning,
    },
    /// Run one measurement against a server.
    Client {
        transport: Transport,
        server: SocketAddr,
        #[arg(long)]
        identity: PathBuf,
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        #[command(flatten)]
        tuning: Tuning,
        #[command(subcommand)]
        measurement: Measurement,
    },
    /// Join two TUN devices by a slow and lossy link.
    Relay(relay::Relay),
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Identity { folder } => identity::create(&folder),
        Command::Relay(relay) => relay.run(),
        Command::Server { transport, listen, identity, tuning } => {
            usage::report(listen)?;
            let identity = Identity::load(&identity)?;
            tokio::runtime::Runtime::new()?.block_on(link::serve(
                transport,
                listen,
                &identity,
                tuning,
                work::serve,
            ))
        }
        Command::Client { transport, server, identity, seconds, tuning, measurement } => {
            let identity = Identity::load(&identity)?;
            let duration = Duration::from_secs(seconds);
            let bench = Bench { transport, server, identity, tuning, duration };
            tokio::runtime::Runtime::new()?.block_on(bench.run(measurement))
        }
    }
}
