//! The relay over loopback: each fault can be seen, and so can its absence. Margins are wide, the machine may be busy.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::{Direction, Faults, Relay};

const FREE: &str = "127.0.0.1:0";
/// Nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// A relay between a client's socket and a server's.
struct Udp {
    relay: Relay,
    client: UdpSocket,
    server: UdpSocket,
}

impl Udp {
    fn start() -> Udp {
        let server = UdpSocket::bind(FREE).unwrap();
        let relay = Relay::start(FREE.parse().unwrap(), server.local_addr().unwrap(), 42).unwrap();
        let client = UdpSocket::bind(FREE).unwrap();
        client.connect(relay.address()).unwrap();
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Udp { relay, client, server }
    }

    fn send(&self, number: u32) {
        self.client.send(&number.to_be_bytes()).unwrap();
    }

    /// The number of the next datagram at the server, and where it came from.
    fn receive(&self) -> (u32, SocketAddr) {
        let mut buffer = [0; 4];
        let (_, from) = self.server.recv_from(&mut buffer).unwrap();
        (u32::from_be_bytes(buffer), from)
    }

    /// Sends numbers up to `count` and returns what arrived before the line was silent.
    fn burst(&self, count: u32) -> Vec<u32> {
        self.server.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut arrived = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    self.send(number);
                    // Not to overrun the sockets' buffers, which would be loss of another kind.
                    std::thread::sleep(if number % 20 == 19 { 5 * MS } else { Duration::ZERO });
                }
            });
            let mut buffer = [0; 4];
            while self.server.recv(&mut buffer).is_ok() {
                arrived.push(u32::from_be_bytes(buffer));
            }
        });
        self.server.set_read_timeout(Some(PATIENCE)).unwrap();
        arrived
    }
}

/// Nothing more comes for a while.
fn silent(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(300 * MS)).unwrap();
    let result = socket.recv(&mut [0; 64]);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn a_good_line_brings_all_datagrams_in_order_and_the_answers_back() {
    let lab = Udp::start();
    assert_eq!(lab.burst(500), (0..500).collect::<Vec<_>>());
    lab.send(7);
    let (number, from) = lab.receive();
    assert_eq!(number, 7);
    lab.server.send_to(b"back", from).unwrap();
    let mut answer = [0; 4];
    lab.client.recv(&mut answer).unwrap();
    assert_eq!(&answer, b"back");
}

#[test]
fn each_direction_has_its_own_delay() {
    let lab = Udp::start();
    lab.relay.set(Direction::Up, Faults { delay: 300 * MS, ..Faults::default() });
    let begin = Instant::now();
    lab.send(1);
    let (_, from) = lab.receive();
    assert!(begin.elapsed() >= 300 * MS, "{:?}", begin.elapsed());
    let begin = Instant::now();
    lab.server.send_to(b"back", from).unwrap();
    lab.client.recv(&mut [0; 4]).unwrap();
    assert!(begin.elapsed() < 300 * MS, "the way back is fast: {:?}", begin.elapsed());
}

#[test]
fn lost_datagrams_are_lost() {
    let lab = Udp::start();
    lab.relay.set(Direction::Up, Faults { loss: 0.3, ..Faults::default() });
    let arrived = lab.burst(500).len();
    assert!((250..450).contains(&arrived), "{arrived} of 500");
}

#[test]
fn doubled_datagrams_arrive_twice() {
    let lab = Udp::start();
    lab.relay.set(Direction::Up, Faults { duplicate: 1.0, ..Faults::default() });
    assert_eq!(lab.burst(3), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn some_datagrams_are_overtaken() {
    let lab = Udp::start();
    lab.relay.set(Direction::Up, Faults { reorder: 0.2, ..Faults::default() });
    let mut arrived = lab.burst(200);
    assert!(!arrived.is_sorted());
    arrived.sort_unstable();
    assert_eq!(arrived, (0..200).collect::<Vec<_>>(), "none is lost");
}

#[test]
fn a_black_hole_swallows_one_direction_until_it_closes() {
    let lab = Udp::start();
    lab.send(1);
    let (_, from) = lab.receive();
    lab.relay.command("down blackhole on").unwrap();
    lab.server.send_to(b"lost", from).unwrap();
    assert!(silent(&lab.client));
    lab.send(2);
    assert_eq!(lab.receive().0, 2, "the other direction is open");
    lab.relay.command("down blackhole off").unwrap();
    lab.server.send_to(b"back", from).unwrap();
    lab.client.recv(&mut [0; 4]).unwrap();
}

#[test]
fn after_a_rebind_datagrams_come_from_elsewhere_and_the_old_port_is_dead() {
    let lab = Udp::start();
    lab.send(1);
    let (_, before) = lab.receive();
    lab.send(2);
    assert_eq!(lab.receive().1, before);
    lab.relay.rebind();
    // The relay may see the next datagram before the command.
    let after = (3..100).find_map(|number| {
        lab.send(number);
        Some(lab.receive().1).filter(|from| *from != before)
    });
    let after = after.expect("a new port");
    lab.server.send_to(b"lost", before).unwrap();
    assert!(silent(&lab.client));
    lab.server.send_to(b"back", after).unwrap();
    lab.client.recv(&mut [0; 4]).unwrap();
}

/// A relay in front of a listener.
fn tcp() -> (Relay, TcpListener) {
    let server = TcpListener::bind(FREE).unwrap();
    let relay = Relay::start(FREE.parse().unwrap(), server.local_addr().unwrap(), 42).unwrap();
    (relay, server)
}

fn connect(relay: &Relay, server: &TcpListener) -> (TcpStream, TcpStream) {
    let mut near = TcpStream::connect(relay.address()).unwrap();
    let (mut far, _) = server.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    // The kernel shakes hands before the relay looks. One byte shows that it has.
    near.write_all(b"!").unwrap();
    far.read_exact(&mut [0]).unwrap();
    (near, far)
}

#[test]
fn a_stream_comes_whole_through_delay_jitter_and_loss() {
    let (relay, server) = tcp();
    relay.set_both(&Faults { delay: 20 * MS, jitter: 10 * MS, loss: 0.05, ..Faults::default() });
    let (mut near, mut far) = connect(&relay, &server);
    let sent: Vec<u8> = (0..500_000_u32).map(|n| (n % 251) as u8).collect();
    let writer = {
        let sent = sent.clone();
        std::thread::spawn(move || {
            near.write_all(&sent).unwrap();
            near.shutdown(std::net::Shutdown::Write).unwrap();
            // Half closed: the answer still comes.
            let mut answer = String::new();
            near.read_to_string(&mut answer).unwrap();
            answer
        })
    };
    let mut received = Vec::new();
    far.read_to_end(&mut received).unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    far.write_all(b"thanks").unwrap();
    drop(far);
    assert_eq!(writer.join().unwrap(), "thanks");
}

#[test]
fn a_throttled_stream_keeps_to_its_speed() {
    let (relay, server) = tcp();
    relay.command("up throttle 200000").unwrap();
    let (mut near, mut far) = connect(&relay, &server);
    let writer = std::thread::spawn(move || near.write_all(&[0; 200_000]).unwrap());
    let begin = Instant::now();
    far.read_exact(&mut [0; 200_000]).unwrap();
    writer.join().unwrap();
    let took = begin.elapsed();
    // The clock starts a little after the line does.
    assert!(took > 700 * MS && took < PATIENCE, "{took:?}");
}

#[test]
fn a_stream_waits_in_a_black_hole_and_goes_on_afterwards() {
    let (relay, server) = tcp();
    let (mut near, mut far) = connect(&relay, &server);
    relay.command("up blackhole on").unwrap();
    near.write_all(b"hello").unwrap();
    far.set_read_timeout(Some(300 * MS)).unwrap();
    assert!(far.read(&mut [0; 5]).is_err());
    relay.command("up blackhole off").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_cut_resets_streams_and_refuses_new_ones_until_it_is_restored() {
    let (relay, server) = tcp();
    let (mut near, mut far) = connect(&relay, &server);
    relay.cut();
    for stream in [&mut near, &mut far] {
        let error = stream.read(&mut [0; 5]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    // The kernel shakes hands for us, so the refusal is a reset.
    let refused = TcpStream::connect(relay.address()).and_then(|mut stream| stream.read(&mut [0; 5]));
    assert!(refused.is_err(), "{refused:?}");
    relay.restore();
    let (mut near, mut far) = connect(&relay, &server);
    near.write_all(b"hello").unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_target_that_refuses_is_refused_to_the_client() {
    let (relay, server) = tcp();
    drop(server);
    let mut stream = TcpStream::connect(relay.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(stream.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn dropping_a_relay_ends_it() {
    let (relay, server) = tcp();
    let address = relay.address();
    let (mut near, _far) = connect(&relay, &server);
    drop(relay);
    assert!(!matches!(near.read(&mut [0; 5]), Ok(1..)));
    assert!(TcpStream::connect(address).is_err());
}
