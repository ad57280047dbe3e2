//! Datagrams: one socket per client towards the target, as a NAT has one port per client.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::{Control, Direction};

/// Room for the largest datagram there is.
const DATAGRAM_MAX: usize = 65536;
/// Clients at one time. One more makes the relay forget all of them, as a poor NAT does.
const MAPPINGS_MAX: usize = 4096;
/// Datagrams on their way. When it is full, further ones are lost.
const QUEUE_MAX: usize = 16384;

pub async fn serve(socket: std::net::UdpSocket, target: SocketAddr, control: &Arc<Control>) -> Result<()> {
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let (queue, arrivals) = mpsc::channel(QUEUE_MAX);
    // Ends with this function: dropping the set aborts its tasks.
    let mut tasks = JoinSet::new();
    tasks.spawn(deliver(arrivals));
    let mut mappings =
        Mappings { target, listen: socket.clone(), clients: HashMap::new(), readers: JoinSet::new() };
    let mut state = control.state.subscribe();
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut generation = state.borrow().mappings;
    loop {
        let (count, client) = tokio::select! {
            changed = state.changed() => {
                changed?;
                let now = state.borrow_and_update().mappings;
                if now != generation {
                    generation = now;
                    mappings.forget();
                }
                continue;
            }
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // An ICMP message about an earlier answer. The client may be gone; other clients are not.
                Err(_) => continue,
            },
        };
        if state.borrow().cut {
            continue;
        }
        let Ok(towards) = mappings.socket(client, control, &queue).await else { continue };
        send_by_line(control, Direction::Up, &buffer[..count], &towards, None, &queue);
    }
}

struct Mappings {
    target: SocketAddr,
    listen: Arc<UdpSocket>,
    clients: HashMap<SocketAddr, Arc<UdpSocket>>,
    readers: JoinSet<()>,
}

impl Mappings {
    async fn socket(
        &mut self,
        client: SocketAddr,
        control: &Arc<Control>,
        queue: &mpsc::Sender<Reverse<Datagram>>,
    ) -> Result<Arc<UdpSocket>> {
        if let Some(socket) = self.clients.get(&client) {
            return Ok(socket.clone());
        }
        if self.clients.len() >= MAPPINGS_MAX {
            self.forget();
        }
        let any = if self.target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = Arc::new(UdpSocket::bind(any).await?);
        socket.connect(self.target).await?;
        self.clients.insert(client, socket.clone());
        self.readers.spawn(bring_back(
            socket.clone(),
            self.listen.clone(),
            client,
            control.clone(),
            queue.clone(),
        ));
        Ok(socket)
    }

    /// Answers to the old ports are lost.
    fn forget(&mut self) {
        self.clients.clear();
        self.readers.abort_all();
        self.readers = JoinSet::new();
    }
}

async fn bring_back(
    from: Arc<UdpSocket>,
    listen: Arc<UdpSocket>,
    client: SocketAddr,
    control: Arc<Control>,
    queue: mpsc::Sender<Reverse<Datagram>>,
) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        // An error is an ICMP message: the target is away for now, and may come back on the same port.
        if let Ok(count) = from.recv(&mut buffer).await {
            send_by_line(&control, Direction::Down, &buffer[..count], &listen, Some(client), &queue);
        }
    }
}

fn send_by_line(
    control: &Control,
    direction: Direction,
    bytes: &[u8],
    socket: &Arc<UdpSocket>,
    to: Option<SocketAddr>,
    queue: &mpsc::Sender<Reverse<Datagram>>,
) {
    let arrivals = control.line(direction).datagram(Instant::now(), bytes.len());
    for at in arrivals {
        let datagram = Datagram { at, order: 0, bytes: bytes.to_vec(), socket: socket.clone(), to };
        // Full: lost, like on any line.
        let _ = queue.try_send(Reverse(datagram));
    }
}

struct Datagram {
    at: Instant,
    /// Those that arrive at the same moment arrive in the order they came.
    order: u64,
    bytes: Vec<u8>,
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
}

impl Datagram {
    async fn send(self) {
        // A datagram that cannot be sent is lost.
        let _ = match self.to {
            Some(to) => self.socket.send_to(&self.bytes, to).await,
            None => self.socket.send(&self.bytes).await,
        };
    }
}

/// Holds every datagram until its time has come.
async fn deliver(mut arrivals: mpsc::Receiver<Reverse<Datagram>>) {
    let mut waiting: BinaryHeap<Reverse<Datagram>> = BinaryHeap::new();
    let mut order = 0;
    loop {
        let next = waiting.peek().map(|Reverse(datagram)| datagram.at);
        let due = async {
            match next {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            arrived = arrivals.recv() => {
                let Some(Reverse(mut datagram)) = arrived else { return };
                datagram.order = order;
                order += 1;
                waiting.push(Reverse(datagram));
            }
            () = due => {}
        }
        while waiting.peek().is_some_and(|Reverse(datagram)| datagram.at <= Instant::now()) {
            if let Some(Reverse(datagram)) = waiting.pop() {
                datagram.send().await;
            }
        }
    }
}

impl PartialEq for Datagram {
    fn eq(&self, other: &Datagram) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Datagram {}

impl PartialOrd for Datagram {
    fn partial_cmp(&self, other: &Datagram) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Datagram {
    fn cmp(&self, other: &Datagram) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
