//! The measurements, seen from the client. Each prints one line of `name=value`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Subcommand;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::identity::Identity;
use crate::link::{Link, Stream, Transport, Tuning, connect};
use crate::usage::{Usage, busy_of_machine};
use crate::work::{PIECE_BYTES, REQUEST_BYTES, RESPONSE_BYTES, Work};

const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Subcommand)]
pub enum Measurement {
    /// This number of streams send or receive as fast as they can; `--stuck` more are opened and never read.
    Bulk {
        #[arg(long)]
        up: bool,
        #[arg(long, default_value_t = 1)]
        streams: usize,
        #[arg(long, default_value_t = 0)]
        stuck: usize,
    },
    /// This number of clients ask and wait for the answer; each with a stream of its own, or with `--fresh` a new one per request.
    Requests {
        #[arg(long)]
        fresh: bool,
        #[arg(long, default_value_t = 64)]
        streams: usize,
    },
    /// Measures the time of some megabytes on a new connection.
    Transfer {
        #[arg(long, default_value_t = 5_000_000)]
        bytes: u64,
        #[arg(long, default_value_t = 5)]
        runs: usize,
        /// All runs at the same time, each on a connection of its own. Only for links that they cannot fill.
        #[arg(long)]
        together: bool,
    },
    /// Measures the resident memory of one idle connection.
    Idle {
        #[arg(long, default_value_t = 1000)]
        connections: usize,
    },
}

pub struct Bench {
    pub transport: Transport,
    pub server: SocketAddr,
    pub identity: Identity,
    pub tuning: Tuning,
    pub duration: Duration,
}

impl Bench {
    pub async fn run(&self, measurement: Measurement) -> Result<()> {
        let name = format!("{:?}/{}", self.transport, self.tuning.congestion).to_lowercase();
        let figures = match measurement.clone() {
            Measurement::Bulk { up, streams, stuck } => self.bulk(up, streams, stuck).await?,
            Measurement::Requests { fresh, streams } => self.requests(fresh, streams).await?,
            Measurement::Transfer { bytes, runs, together } => self.transfers(bytes, runs, together).await?,
            Measurement::Idle { connections } => self.idle(connections).await?,
        };
        println!("{name} {measurement:?} {figures}");
        Ok(())
    }

    async fn link(&self) -> Result<Arc<dyn Link>> {
        let mut links = connect(self.transport, self.server, &self.identity, self.tuning.clone(), 1).await?;
        Ok(links.remove(0))
    }

    async fn bulk(&self, up: bool, streams: usize, stuck: usize) -> Result<String> {
        let link = self.link().await?;
        let moved = Arc::new(AtomicU64::new(0));
        let mut running = JoinSet::new();
        let mut unread = Vec::new();
        for _ in 0..stuck {
            unread.push(open(&*link, Work::Download(u64::MAX)).await?);
        }
        for _ in 0..streams {
            let work = if up { Work::Upload } else { Work::Download(u64::MAX) };
            let stream = open(&*link, work).await?;
            running.spawn(move_bytes(stream, up, moved.clone()));
        }
        let (bytes, elapsed, cpu, others) = self.window(|| moved.load(Ordering::Relaxed)).await?;
        let gigabytes = bytes as f64 / 1e9;
        let memory = Usage::of_this_process()?.resident_bytes as f64 / 1e6;
        let server_memory = Usage::of_server(self.server)?.resident_bytes as f64 / 1e6;
        running.shutdown().await;
        Ok(format!(
            "MB/s={:.0} cpu_s_per_GB={:.2} client={:.2} server={:.2} rss_client_MB={memory:.0} rss_server_MB={server_memory:.0} others={others:.0}%",
            bytes as f64 / 1e6 / elapsed,
            (cpu.0 + cpu.1) / gigabytes,
            cpu.0 / gigabytes,
            cpu.1 / gigabytes,
        ))
    }

    async fn requests(&self, fresh: bool, streams: usize) -> Result<String> {
        let link = self.link().await?;
        let answered = Arc::new(AtomicU64::new(0));
        let end = Instant::now() + WARM_UP + self.duration;
        let mut running = JoinSet::new();
        for _ in 0..streams {
            let (link, answered) = (link.clone(), answered.clone());
            running.spawn(async move {
                if fresh {
                    ask_afresh(link, end, answered).await
                } else {
                    ask_again(link, end, answered).await
                }
            });
        }
        let (requests, elapsed, cpu, others) = self.window(|| answered.load(Ordering::Relaxed)).await?;
        let mut latencies = Vec::new();
        while let Some(ended) = timeout(Duration::from_secs(5), running.join_next()).await? {
            latencies.extend(ended??);
        }
        latencies.sort_unstable();
        ensure!(!latencies.is_empty(), "nothing was answered");
        let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        Ok(format!(
            "per_s={:.0} p50_us={:.0} p99_us={:.0} cpu_us_each={:.1} others={others:.0}%",
            requests as f64 / elapsed,
            at(0.5),
            at(0.99),
            (cpu.0 + cpu.1) * 1e6 / requests as f64,
        ))
    }

    /// Returns the gain of `counter` between the warm-up and the end, its time in seconds, and the processor
    /// seconds of client and server for it. Last, the share of the machine that neither of them had: other
    /// processes, the hypervisor, and kernel work that is charged to no process. Much of it spoils the figure.
    async fn window(&self, counter: impl Fn() -> u64) -> Result<(u64, f64, (f64, f64), f64)> {
        sleep(WARM_UP).await;
        let before = (Usage::of_this_process()?, Usage::of_server(self.server)?);
        let (start, first, busy) = (Instant::now(), counter(), busy_of_machine()?);
        sleep(self.duration).await;
        let (elapsed, last) = (start.elapsed().as_secs_f64(), counter());
        let busy = busy_of_machine()? - busy;
        let after = (Usage::of_this_process()?, Usage::of_server(self.server)?);
        let cpu = |after: Usage, before: Usage| (after.cpu - before.cpu).as_secs_f64();
        let (client, server) = (cpu(after.0, before.0), cpu(after.1, before.1));
        let processors = std::thread::available_parallelism()?.get() as f64;
        let others = 100.0 * (busy - client - server) / (elapsed * processors);
        Ok((last - first, elapsed, (client, server), others))
    }

    async fn transfers(&self, bytes: u64, runs: usize, together: bool) -> Result<String> {
        let mut times = Vec::new();
        if together {
            let all = (0..runs).map(|_| self.transfer(bytes));
            times = futures::future::try_join_all(all).await?;
        } else {
            for _ in 0..runs {
                times.push(self.transfer(bytes).await?);
            }
        }
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let list: Vec<String> = times.iter().map(|(_, whole)| format!("{whole:.2}")).collect();
        let mut handshakes: Vec<f64> = times.iter().map(|(handshake, _)| *handshake).collect();
        handshakes.sort_by(f64::total_cmp);
        Ok(format!(
            "median_s={:.2} all_s={} handshake_median_s={:.2}",
            times[times.len() / 2].1,
            list.join(","),
            handshakes[handshakes.len() / 2],
        ))
    }

    /// Seconds of the handshake, and of the transfer after it.
    async fn transfer(&self, bytes: u64) -> Result<(f64, f64)> {
        let start = Instant::now();
        let link = self.link().await?;
        let handshake = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut stream = open(&*link, Work::Download(bytes)).await?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = bytes;
        while left > 0 {
            let read = stream.recv.read(&mut piece).await?;
            ensure!(read > 0, "the stream ended early");
            left -= read as u64;
        }
        let whole = start.elapsed().as_secs_f64();
        stream.send.shutdown().await?;
        Ok((handshake, whole))
    }

    async fn idle(&self, connections: usize) -> Result<String> {
        // The first connection pays for what all share.
        let _first = self.link().await?;
        let before = (Usage::of_this_process()?, Usage::of_server(self.server)?);
        let links =
            connect(self.transport, self.server, &self.identity, self.tuning.clone(), connections).await?;
        // Time for the acknowledgements and timers that follow a handshake, and for MTU discovery.
        sleep(self.duration).await;
        let after = (Usage::of_this_process()?, Usage::of_server(self.server)?);
        let each = |after: Usage, before: Usage| {
            (after.resident_bytes as f64 - before.resident_bytes as f64) / 1024.0 / links.len() as f64
        };
        let cpu = (after.1.cpu - before.1.cpu).as_secs_f64() * 1e3 / links.len() as f64;
        Ok(format!(
            "server_KiB_each={:.1} client_KiB_each={:.1} server_cpu_ms_each={cpu:.2}",
            each(after.1, before.1),
            each(after.0, before.0)
        ))
    }
}

async fn open(link: &dyn Link, work: Work) -> Result<Stream> {
    let mut stream = link.open().await?;
    stream.send.write_all(&work.encode()).await?;
    stream.send.flush().await?;
    Ok(stream)
}

async fn move_bytes(mut stream: Stream, up: bool, moved: Arc<AtomicU64>) -> Result<()> {
    let mut piece = vec![0x5a; PIECE_BYTES];
    loop {
        let size = if up { stream.send.write(&piece).await? } else { stream.recv.read(&mut piece).await? };
        ensure!(size > 0, "the stream ended early");
        moved.fetch_add(size as u64, Ordering::Relaxed);
    }
}

async fn ask_again(link: Arc<dyn Link>, end: Instant, answered: Arc<AtomicU64>) -> Result<Vec<Duration>> {
    let mut stream = open(&*link, Work::Answer).await?;
    let (request, mut response) = ([0x5a; REQUEST_BYTES], [0; RESPONSE_BYTES]);
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        stream.send.write_all(&request).await?;
        stream.send.flush().await?;
        stream.recv.read_exact(&mut response).await?;
        latencies.push(start.elapsed());
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(latencies)
}

async fn ask_afresh(link: Arc<dyn Link>, end: Instant, answered: Arc<AtomicU64>) -> Result<Vec<Duration>> {
    let mut request = [0x5a; 9 + REQUEST_BYTES];
    request[..9].copy_from_slice(&Work::AnswerOnce.encode());
    let mut response = Vec::with_capacity(RESPONSE_BYTES + 1);
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        let mut stream = link.open().await?;
        stream.send.write_all(&request).await?;
        stream.send.shutdown().await?;
        response.clear();
        stream.recv.read_to_end(&mut response).await?;
        ensure!(response.len() == RESPONSE_BYTES, "{} bytes of an answer", response.len());
        latencies.push(start.elapsed());
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(latencies)
}
