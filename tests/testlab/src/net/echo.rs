//! A server that says everything back, over UDP and TCP on one port, and the question whether it can be reached.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Host;

/// The interval at which a server checks whether it should stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The kernel's own choice holds 256 small datagrams.
const UDP_BUFFER_BYTES: usize = 4 << 20;
const WORD: &[u8] = b"are you there?";

/// Answers until it is dropped. Every answer to a datagram begins with the address it came from.
#[derive(Debug)]
pub struct Echo {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Echo {
    pub fn start(host: &Host, address: SocketAddr) -> Result<Echo> {
        let (tcp, udp) = host.inside(|| bind(address))?;
        let stop = Arc::new(AtomicBool::new(false));
        let address = udp.local_addr()?;
        // The sockets stay where they were made, so their threads may run anywhere.
        std::thread::spawn({
            let stop = stop.clone();
            move || serve_udp(&udp, &stop)
        });
        std::thread::spawn({
            let stop = stop.clone();
            move || serve_tcp(&tcp, &stop)
        });
        Ok(Echo { address, stop })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Datagrams that found their socket full, of all sockets that a host had so far.
pub fn datagrams_dropped(host: &Host) -> Result<u64> {
    let counters = host.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/snmp")?))?;
    let mut lines = counters.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let (_, count) = both.find(|(name, _)| *name == "RcvbufErrors").context("no such counter")?;
    Ok(count.parse()?)
}

/// Asks over UDP, several times, since datagrams may be lost. Returns the address under which the server saw us.
pub fn reach_udp(host: &Host, to: SocketAddr, within: Duration) -> Result<SocketAddr> {
    host.inside(|| {
        let socket = UdpSocket::bind(any(to))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(within / 5))?;
        let mut buffer = [0; 512];
        let mut last = None;
        for _ in 0..5 {
            socket.send(WORD)?;
            match socket.recv(&mut buffer) {
                Ok(count) => return seen(&buffer[..count]),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("nothing was tried")?.into())
    })
}

/// Asks over TCP. Returns the address under which the server saw us.
pub fn reach_tcp(host: &Host, to: SocketAddr, within: Duration) -> Result<SocketAddr> {
    host.inside(|| {
        let mut stream = TcpStream::connect_timeout(&to, within)?;
        stream.set_read_timeout(Some(within))?;
        stream.write_all(WORD)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        seen(&answer)
    })
}

fn seen(answer: &[u8]) -> Result<SocketAddr> {
    let text = std::str::from_utf8(answer)?;
    let (address, word) = text.split_once('\n').context("the answer has two lines")?;
    ensure!(word.as_bytes() == WORD, "another word came back");
    Ok(address.parse()?)
}

fn bind(address: SocketAddr) -> Result<(TcpListener, UdpSocket)> {
    let tcp = TcpListener::bind(address)?;
    tcp.set_nonblocking(true)?;
    let udp = UdpSocket::bind(tcp.local_addr()?)?;
    // SO_RCVBUFFORCE: a process that makes namespaces may use it. A server with a thousand clients at once needs it.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&udp, UDP_BUFFER_BYTES)?;
    udp.set_read_timeout(Some(LOOK_AGAIN))?;
    Ok((tcp, udp))
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = vec![0; 65536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((count, from)) = socket.recv_from(&mut buffer) else { continue };
        let mut answer = format!("{from}\n").into_bytes();
        answer.extend(&buffer[..count]);
        let _ = socket.send_to(&answer, from);
    }
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            // One thread per connection; a lab has few.
            Ok((stream, from)) => drop(std::thread::spawn(move || answer(stream, from))),
            Err(_) => std::thread::sleep(LOOK_AGAIN / 10),
        }
    }
}

fn answer(mut stream: TcpStream, from: SocketAddr) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.write_all(format!("{from}\n").as_bytes())?;
    let mut reader = stream.try_clone()?;
    std::io::copy(&mut reader, &mut stream)?;
    Ok(())
}

fn any(like: SocketAddr) -> &'static str {
    if like.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }
}
