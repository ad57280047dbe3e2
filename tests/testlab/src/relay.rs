//! A bad line between two programs: forwards UDP datagrams and TCP connections and does to them what was asked.
//!
//! It listens on one address, for both protocols on one port, and sends on to another. Each direction delays, jitters,
//! loses, reorders, duplicates, throttles or swallows by itself; `cut` ends everything. All of it can change while it
//! runs. Chance comes from a seed. It works on datagrams and on bytes, not on packets: a lost piece of a TCP
//! connection is a piece that comes late, and a connection is accepted even when nothing crosses.

mod commands;
mod faults;
mod tcp;
mod udp;

#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use causeway_api::sync::MutexExt;
use tokio::sync::watch;

pub use faults::{Direction, Faults};

use crate::net::Host;
use faults::Line;

/// The number of tries to find a port that is free for both protocols.
const PORT_ATTEMPTS: usize = 20;

/// Forwards until it is dropped, on a thread of its own.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    seed: u64,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens here. Port 0 is a free port.
    pub fn start(listen: SocketAddr, target: SocketAddr, seed: u64) -> Result<Relay> {
        let sockets = bind(listen)?;
        Relay::launch(sockets, target, seed, |run| Ok(std::thread::spawn(run)))
    }

    /// Listens and dials inside a host.
    pub fn start_in(host: &Host, listen: SocketAddr, target: SocketAddr, seed: u64) -> Result<Relay> {
        let sockets = host.inside(|| bind(listen))?;
        Relay::launch(sockets, target, seed, |run| host.start(run))
    }

    fn launch(
        (tcp, udp): (TcpListener, UdpSocket),
        target: SocketAddr,
        seed: u64,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> Result<JoinHandle<()>>,
    ) -> Result<Relay> {
        let address = udp.local_addr()?;
        let control = Arc::new(Control::new(seed));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = {
            let control = control.clone();
            move || runtime.block_on(serve(tcp, udp, target, control))
        };
        let thread = spawn(Box::new(run))?;
        eprintln!("relay {address} to {target}: CAUSEWAY_SEED={seed}");
        Ok(Relay { address, seed, control, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Replaces the faults of one direction. Bytes that are already on their way keep their time.
    pub fn set(&self, direction: Direction, faults: Faults) {
        self.control.state.send_modify(|state| match direction {
            Direction::Up => state.up_black_hole = faults.black_hole,
            Direction::Down => state.down_black_hole = faults.black_hole,
        });
        self.control.line(direction).set(faults);
    }

    pub fn set_both(&self, faults: &Faults) {
        self.set(Direction::Up, faults.clone());
        self.set(Direction::Down, faults.clone());
    }

    pub fn faults(&self, direction: Direction) -> Faults {
        self.control.line(direction).faults().clone()
    }

    /// Bytes that crossed in one direction since the start: payloads of datagrams and of TCP.
    pub fn carried_bytes(&self, direction: Direction) -> u64 {
        self.control.line(direction).carried_bytes()
    }

    /// Connections are reset, new ones refused, datagrams vanish, mappings are forgotten.
    pub fn cut(&self) {
        self.control.state.send_modify(|state| {
            state.cut = true;
            state.mappings += 1;
        });
    }

    pub fn restore(&self) {
        self.control.state.send_modify(|state| state.cut = false);
    }

    /// As a NAT that forgot: every client's next datagram leaves from a new port, and answers to the old one are lost.
    pub fn rebind(&self) {
        self.control.state.send_modify(|state| state.mappings += 1);
    }

    /// One line of text, as the program `relay` reads them.
    pub fn command(&self, line: &str) -> Result<()> {
        commands::obey(self, line)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.control.state.send_modify(|state| state.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State that the forwarding tasks share.
#[derive(Debug)]
struct Control {
    up: Mutex<Line>,
    down: Mutex<Line>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    stop: bool,
    cut: bool,
    up_black_hole: bool,
    down_black_hole: bool,
    /// Rises when all mappings are to be forgotten.
    mappings: u64,
}

impl State {
    fn black_hole(&self, direction: Direction) -> bool {
        match direction {
            Direction::Up => self.up_black_hole,
            Direction::Down => self.down_black_hole,
        }
    }
}

impl Control {
    fn new(seed: u64) -> Control {
        // Each direction has random of its own, so that traffic one way does not change the fate of the other.
        let line = |seed| Mutex::new(Line::new(seed));
        Control { up: line(seed), down: line(!seed), state: watch::Sender::new(State::default()) }
    }

    fn line(&self, direction: Direction) -> MutexGuard<'_, Line> {
        let line = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        line.lock_ignoring_poison()
    }
}

async fn serve(tcp: TcpListener, udp: UdpSocket, target: SocketAddr, control: Arc<Control>) {
    let mut state = control.state.subscribe();
    let forward =
        async { tokio::try_join!(tcp::serve(tcp, target, &control), udp::serve(udp, target, &control)) };
    tokio::select! {
        _ = state.wait_for(|state| state.stop) => {}
        ended = forward => if let Err(error) = ended {
            eprintln!("relay to {target}: {error:#}");
        },
    }
}

fn bind(listen: SocketAddr) -> Result<(TcpListener, UdpSocket)> {
    let mut last = None;
    for _ in 0..PORT_ATTEMPTS {
        let tcp = TcpListener::bind(listen)?;
        tcp.set_nonblocking(true)?;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => {
                udp.set_nonblocking(true)?;
                return Ok((tcp, udp));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no attempt was made")?.into())
}
