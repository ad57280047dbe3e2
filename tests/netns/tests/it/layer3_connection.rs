//! A TCP connection between two hosts of the layer 3 lab that says what it sent and waits for it to come back.
//!
//! `EchoLoop` runs one without an end in a thread, so that a test can change the network meanwhile and ask for the pauses.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::fleet::CHANNEL_PORT;
use testlab::net::Host;

use crate::layer3_lab::{Layer3, PORT};
use crate::layer3_paths::path;

/// Bytes of the bulk transfer in each direction.
pub const BULK: usize = 8 << 20;
pub const BLOCK: usize = 64 << 10;
/// A path is searched for every 15 seconds at the latest, first that to the relay, then that through it.
const SEARCH: Duration = Duration::from_secs(60);
/// TCP sends again after 0.2, 0.6, 1.4 … 51 s: a connection that is alive goes on within this time after the path is back.
const RETRANSMISSION: Duration = Duration::from_secs(120);
/// A pattern that no sealed packet shows.
pub const MARK: &[u8] = b"a payload that no relay can read";
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub struct Flow(TcpStream);

impl Flow {
    /// Connects to the echo server of a host.
    pub fn open(lab: &Layer3, from: &str, to: &str) -> Flow {
        Flow::connect(&lab.host(from), SocketAddr::new(lab.address(to, false), PORT))
    }

    pub fn connect(host: &Host, server: SocketAddr) -> Flow {
        let connection = host.inside(|| Ok(TcpStream::connect(server)?)).unwrap();
        connection.set_read_timeout(Some(RETRANSMISSION)).unwrap();
        connection.set_nodelay(true).unwrap();
        let mut flow = Flow(connection);
        // The server begins with a line that names the client.
        let mut byte = [0];
        while byte != *b"\n" {
            flow.0.read_exact(&mut byte).unwrap();
        }
        flow
    }

    pub fn echo(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(back, bytes);
    }

    /// Echoes until both edges have the path; returns how long it took, and the longest time without an echo.
    pub fn echo_until(&mut self, lab: &Layer3, wanted: &str, relay: &Value) -> (Duration, Duration) {
        let (begin, mut longest) = (Instant::now(), Duration::ZERO);
        loop {
            let sent = Instant::now();
            self.echo(MARK);
            longest = longest.max(sent.elapsed());
            let ends = [path(lab, 0, "edge-b"), path(lab, 1, "edge-a")];
            if ends.iter().all(|end| end["path"] == wanted && end["relay"] == *relay) {
                return (begin.elapsed(), longest);
            }
            assert!(begin.elapsed() < SEARCH, "the path is not {wanted} by {relay}: {ends:?}");
        }
    }

    /// Echoes until the connection is reset, or an echo takes longer than `patience`. Returns the time of the last echo, that of
    /// the end, and whether the connection was reset.
    pub fn echo_until_end(mut self, patience: Duration) -> (Instant, Instant, bool) {
        self.0.set_read_timeout(Some(patience)).unwrap();
        let (mut last, mut back) = (Instant::now(), [0; MARK.len()]);
        loop {
            let echoed = self.0.write_all(MARK).and_then(|()| self.0.read_exact(&mut back));
            match echoed {
                Ok(()) => last = Instant::now(),
                Err(error) => return (last, Instant::now(), error.kind() == ErrorKind::ConnectionReset),
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Sends the bulk there and back.
    pub fn bulk(&mut self) {
        for _ in 0..BULK / BLOCK {
            self.echo(&block());
        }
    }
}

fn block() -> Vec<u8> {
    MARK.iter().copied().cycle().take(BLOCK).collect()
}

/// A connection on which blocks go there and back until the loop is ended.
pub struct EchoLoop {
    name: String,
    state: Arc<Mutex<Echoed>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct Echoed {
    blocks: u64,
    longest: Duration,
}

impl EchoLoop {
    pub fn start(name: &str, mut flow: Flow) -> EchoLoop {
        let state = Arc::new(Mutex::new(Echoed { blocks: 0, longest: Duration::ZERO }));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (state.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let sent = Instant::now();
                flow.echo(&block());
                let mut echoed = shared.lock().unwrap();
                echoed.blocks += 1;
                echoed.longest = echoed.longest.max(sent.elapsed());
            }
        });
        EchoLoop { name: name.to_owned(), state, stop, thread }
    }

    pub fn blocks(&self) -> u64 {
        self.state.lock().unwrap().blocks
    }

    /// Waits until blocks that are sent from now on have come back. Returns how long that took.
    pub fn await_echoes(&self) -> Duration {
        // The block that is on its way was sent before.
        let (begin, enough) = (Instant::now(), self.blocks() + 3);
        while self.blocks() < enough {
            assert!(!self.thread.is_finished(), "the connection {} is lost", self.name);
            assert!(begin.elapsed() < RETRANSMISSION, "the connection {} does not go on", self.name);
            std::thread::sleep(LOOK_AGAIN);
        }
        begin.elapsed()
    }

    /// Returns the longest time that a block has taken since the last call.
    pub fn take_longest(&self) -> Duration {
        std::mem::take(&mut self.state.lock().unwrap().longest)
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Counts, at a node, the bytes that arrive for the channel and for the tunnel.
pub fn count_bytes(lab: &Layer3, node: &str) {
    let rules = format!(
        "counter channel {{}}\ncounter tunnel {{}}\nchain in {{ type filter hook input priority -10;\n\
         udp dport {CHANNEL_PORT} counter name channel\ntcp dport {CHANNEL_PORT} counter name channel\n\
         udp dport 7446 counter name tunnel\n}}\n"
    );
    lab.nft(node, &format!("table inet lab_count {{\n{rules}}}\n"));
}

/// Returns the bytes for the channel and for the tunnel.
pub fn counted(lab: &Layer3, node: &str) -> (u64, u64) {
    let output = lab.host(node).command("nft").args(["-j", "list", "counters"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = |name: &str| {
        let counters = listed["nftables"].as_array().unwrap().iter().map(|entry| &entry["counter"]);
        counters
            .filter(|counter| counter["name"] == name)
            .find_map(|counter| counter["bytes"].as_u64())
            .unwrap()
    };
    (bytes("channel"), bytes("tunnel"))
}
