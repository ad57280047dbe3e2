//! The load of subjects: the greedy one wants several times its limit, the polite one half of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Greedy = 0,
    Polite = 1,
}

impl Subject {
    pub const BOTH: [Subject; 2] = [Subject::Greedy, Subject::Polite];

    pub fn name(self) -> &'static str {
        match self {
            Subject::Greedy => "greedy",
            Subject::Polite => "polite",
        }
    }

    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 0, 3 + self as u8)
    }
}

/// The amount that passed, and the amount that was wanted.
pub struct Got {
    pub passed: u64,
    pub wanted: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Load {
    TcpDrain,
    TcpPour,
    UdpDrain,
    UdpPour,
    HttpDrain,
    HttpPour,
    UpgradeDrain,
    UpgradePour,
    TcpNew,
    HttpNew,
    TcpOpen,
    HttpOpen,
    HttpAsk,
}

/// Multiple of its limit that the greedy one wants, where it could want endlessly.
const GREED: u64 = 4;
/// Connections the greedy one uses at once, to move bytes.
const GREEDY_CONNECTIONS: usize = 4;
pub const DATAGRAM_BYTES: usize = 1000;
const STEP: Duration = Duration::from_millis(50);

/// One subject at one row.
#[derive(Clone, Copy)]
struct Client<'a> {
    at: SocketAddr,
    counter: &'a AtomicU64,
    row: usize,
    subject: Subject,
    most: u64,
    time: Duration,
}

impl Load {
    /// Goes on for `time`. `counter` is what the backend counts, `most` what may pass.
    pub fn run(
        self,
        at: SocketAddr,
        counter: &AtomicU64,
        row: usize,
        subject: Subject,
        most: u64,
        time: Duration,
    ) -> Got {
        let client = Client { at, counter, row, subject, most, time };
        match self {
            Load::TcpDrain => client.drain(Client::tcp),
            Load::TcpPour => client.pour(Client::tcp),
            Load::UpgradeDrain => client.drain(Client::upgraded),
            Load::UpgradePour => client.pour(Client::upgraded),
            Load::HttpDrain => client.drain(Client::http_body),
            Load::HttpPour => client.pour(Client::http_body),
            Load::UdpDrain => client.udp_drain(),
            Load::UdpPour => client.udp_pour(),
            Load::TcpNew => client.often(|| client.tcp_word().map(drop)),
            Load::HttpNew => client.often(|| client.http_word(&mut client.connect()?).map(drop)),
            Load::HttpAsk => client.ask(),
            Load::TcpOpen => client.open(|| client.tcp_word()),
            Load::HttpOpen => client.open(|| {
                let mut stream = client.connect()?;
                client.http_word(&mut stream)?;
                Ok(stream)
            }),
        }
    }
}

impl Client<'_> {
    fn connect(&self) -> std::io::Result<TcpStream> {
        connect(self.subject.address(), self.at)
    }

    /// The amount that one subject wants in all: the polite one half of its limit.
    fn wanted(&self) -> u64 {
        match self.subject {
            Subject::Greedy => self.most * GREED,
            Subject::Polite => self.most / 2,
        }
    }

    fn tcp(&self, deed: u8) -> std::io::Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.write_all(&[self.row as u8, self.subject as u8, deed])?;
        Ok(stream)
    }

    fn request(&self, method: &str, deed: u8, headers: &str) -> String {
        let (row, subject, deed) = (self.row, self.subject as usize, char::from(deed));
        format!("{method} /{row}/{subject}/{deed} HTTP/1.1\r\nHost: limits\r\n{headers}\r\n")
    }

    fn upgraded(&self, deed: u8) -> std::io::Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.write_all(self.request("GET", deed, "Connection: Upgrade\r\nUpgrade: raw\r\n").as_bytes())?;
        let status = head(&mut stream)?;
        assert_eq!(status, 101, "{}", self.row);
        Ok(stream)
    }

    /// A request whose body, or that of its response, has no end to speak of.
    fn http_body(&self, deed: u8) -> std::io::Result<TcpStream> {
        let mut stream = self.connect()?;
        match deed {
            b'd' => {
                stream.write_all(self.request("POST", deed, "Content-Length: 1000000000\r\n").as_bytes())?
            }
            _ => {
                stream.write_all(self.request("GET", deed, "").as_bytes())?;
                assert_eq!(head(&mut stream)?, 200, "{}", self.row);
            }
        }
        Ok(stream)
    }

    fn tcp_word(&self) -> std::io::Result<TcpStream> {
        let mut stream = self.tcp(b'w')?;
        stream.read_exact(&mut [0])?;
        Ok(stream)
    }

    fn http_word(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(self.request("GET", b'w', "").as_bytes())?;
        match head(stream)? {
            200 => Ok(()),
            429 => Err(std::io::ErrorKind::QuotaExceeded.into()),
            status => panic!("{status} in row {}", self.row),
        }
    }

    fn connections(&self) -> usize {
        match self.subject {
            Subject::Greedy => GREEDY_CONNECTIONS,
            Subject::Polite => 1,
        }
    }

    /// Sends, and lets the backend count.
    fn drain(&self, open: fn(&Self, u8) -> std::io::Result<TcpStream>) -> Got {
        let (begin, over, sent) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
        let before = self.counter.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..self.connections() {
                scope.spawn(|| {
                    let mut stream = open(self, b'd').unwrap();
                    stream.set_write_timeout(Some(STEP)).unwrap();
                    let buffer = [7; 8 << 10];
                    while !over.load(Ordering::Relaxed) {
                        let due = self.due(begin.elapsed());
                        let left = usize::try_from(due.saturating_sub(sent.load(Ordering::Relaxed))).unwrap();
                        if left == 0 {
                            std::thread::sleep(STEP / 5);
                            continue;
                        }
                        if let Ok(bytes) = stream.write(&buffer[..left.min(buffer.len())]) {
                            sent.fetch_add(bytes as u64, Ordering::Relaxed);
                        }
                    }
                });
            }
            std::thread::sleep(self.time.saturating_sub(begin.elapsed()));
            let passed = self.counter.load(Ordering::Relaxed) - before;
            over.store(true, Ordering::Relaxed);
            Got { passed, wanted: self.wanted() }
        })
    }

    /// Bytes that should have been sent by now: evenly, and all of it a moment before the end, so that it can arrive.
    fn due(&self, elapsed: Duration) -> u64 {
        let time = self.time.mul_f64(0.95);
        (self.wanted() as f64 * (elapsed.as_secs_f64() / time.as_secs_f64()).min(1.0)) as u64
    }

    /// Reads as much as there is; the polite one as much as it wants.
    fn pour(&self, open: fn(&Self, u8) -> std::io::Result<TcpStream>) -> Got {
        let (begin, received) = (Instant::now(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..self.connections() {
                scope.spawn(|| {
                    // A subject that is over its limit may wait for the beginning of its next response, too.
                    let Ok(mut stream) = open(self, b'p') else { return };
                    stream.set_read_timeout(Some(STEP)).unwrap();
                    let mut buffer = [0; 8 << 10];
                    while begin.elapsed() < self.time && received.load(Ordering::Relaxed) < self.wanted() {
                        received.fetch_add(stream.read(&mut buffer).unwrap_or(0) as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        Got { passed: received.into_inner(), wanted: self.wanted() }
    }

    fn udp(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.subject.address(), 0)).unwrap();
        socket.connect(self.at).unwrap();
        socket
    }

    fn udp_drain(&self) -> Got {
        let (socket, begin, mut sent) = (self.udp(), Instant::now(), 0);
        let before = self.counter.load(Ordering::Relaxed);
        let mut datagram = [7; DATAGRAM_BYTES];
        datagram[..3].copy_from_slice(&[self.row as u8, self.subject as u8, b'd']);
        while begin.elapsed() < self.time {
            while sent < self.due(begin.elapsed()) {
                let _ = socket.send(&datagram);
                sent += DATAGRAM_BYTES as u64;
            }
            std::thread::sleep(STEP / 10);
        }
        Got { passed: self.counter.load(Ordering::Relaxed) - before, wanted: self.wanted() }
    }

    /// Every question is small, and has ten long answers.
    fn udp_pour(&self) -> Got {
        let (socket, begin, mut asked, mut passed) = (self.udp(), Instant::now(), 0, 0);
        socket.set_read_timeout(Some(STEP / 10)).unwrap();
        while begin.elapsed() < self.time {
            if asked < self.due(begin.elapsed()) {
                let _ = socket.send(&[self.row as u8, self.subject as u8, b'p']);
                asked += 10 * DATAGRAM_BYTES as u64;
            }
            passed += socket.recv(&mut [0; 2048]).unwrap_or(0) as u64;
        }
        Got { passed, wanted: self.wanted() }
    }

    /// Tries again and again, evenly.
    fn often(&self, one: impl Fn() -> std::io::Result<()> + Sync) -> Got {
        let (begin, wanted, next) = (Instant::now(), self.wanted(), AtomicU64::new(0));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let at = self.time.mul_f64(number as f64 / wanted as f64);
                        if at >= self.time || begin.elapsed() >= self.time {
                            return;
                        }
                        std::thread::sleep(at.saturating_sub(begin.elapsed()));
                        passed.fetch_add(u64::from(one().is_ok()), Ordering::Relaxed);
                    }
                });
            }
        });
        Got { passed: passed.into_inner(), wanted }
    }

    /// Requests on connections that stay. One that is refused is told when to come again, and its connection stays.
    fn ask(&self) -> Got {
        let streams: Vec<_> = (0..4).map(|_| std::sync::Mutex::new(self.connect().unwrap())).collect();
        self.often(|| {
            let free = streams.iter().find_map(|stream| stream.try_lock().ok());
            self.http_word(&mut free.unwrap())
        })
    }

    /// Opens as many as it can and holds them; says how many were open in the end.
    fn open(&self, one: impl Fn() -> std::io::Result<TcpStream>) -> Got {
        let wanted = match self.subject {
            Subject::Greedy => self.most * GREED,
            Subject::Polite => self.most,
        };
        let (begin, mut held) = (Instant::now(), Vec::new());
        for number in 0..wanted {
            std::thread::sleep(
                self.time.mul_f64(number as f64 / wanted as f64).saturating_sub(begin.elapsed()),
            );
            held.extend(one().ok());
        }
        Got { passed: held.len() as u64, wanted }
    }
}

fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    // Little waits in this process, so that what was sent is what has crossed.
    socket.set_send_buffer_size(16 << 10)?;
    socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Reads the head of a response, and a body that has a length and is short. A 429 says when to come again.
fn head(stream: &mut TcpStream) -> std::io::Result<u16> {
    let mut reader = BufReader::with_capacity(1, stream);
    let (mut status, mut length, mut again) = (String::new(), 0, None);
    if reader.read_line(&mut status)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let status: u16 = status.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(("retry-after", value)) => again = value.parse::<u64>().ok(),
            Some(_) => {}
            None => break,
        }
    }
    assert!(status != 429 || again.is_some_and(|seconds| seconds >= 1), "429 without Retry-After");
    if length < 10_000 {
        reader.read_exact(&mut vec![0; length])?;
    }
    Ok(status)
}

/// Returns true if the whole way is there. Uses little of any limit.
pub fn answers(protocol: &str, at: SocketAddr) -> Option<()> {
    let counter = AtomicU64::new(0);
    let (subject, time) = (Subject::Polite, Duration::from_secs(1));
    let client = Client { at, counter: &counter, row: 0, subject, most: 0, time };
    match protocol {
        "TCP" => client.tcp_word().ok().map(drop),
        "UDP" => {
            let socket = client.udp();
            socket.set_read_timeout(Some(time)).ok()?;
            socket.send(&[0, subject as u8, b'w']).ok()?;
            socket.recv(&mut [0; 8]).ok().map(drop)
        }
        _ => {
            let mut stream = client.connect().ok()?;
            stream.write_all(client.request("GET", b'w', "").as_bytes()).ok()?;
            (head(&mut stream).ok()? == 200).then_some(())
        }
    }
}
