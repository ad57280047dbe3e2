//! The backends of the limits: one for TCP, one for HTTP, one for UDP. The bytes of a client name their own treatment: a row, a subject, a
//! deed. `drain` swallows and counts, `pour` gives without end, `word` answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::{DATAGRAM_BYTES, Subject};

/// The amount of a row that came from each subject.
type Counters = Arc<Vec<[AtomicU64; 2]>>;

pub struct Backend {
    tcp: u16,
    http: u16,
    udp: u16,
    counters: Counters,
}

/// Longer than any row reads.
const POURED_BYTES: u64 = 1 << 30;

impl Backend {
    pub fn start(rows: usize) -> Backend {
        let counters: Counters = Arc::new((0..rows).map(|_| Default::default()).collect());
        let serve = |answer: fn(TcpStream, &Counters) -> std::io::Result<()>| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (port, counters) = (listener.local_addr().unwrap().port(), counters.clone());
            std::thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let counters = counters.clone();
                    std::thread::spawn(move || answer(stream, &counters));
                }
            });
            port
        };
        let (tcp, http) = (serve(answer_tcp), serve(answer_http));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp = socket.local_addr().unwrap().port();
        let counted = counters.clone();
        std::thread::spawn(move || answer_udp(&socket, &counted));
        Backend { tcp, http, udp, counters }
    }

    pub fn port(&self, protocol: &str) -> u16 {
        match protocol {
            "TCP" => self.tcp,
            "UDP" => self.udp,
            _ => self.http,
        }
    }

    pub fn counter(&self, row: usize, subject: Subject) -> &AtomicU64 {
        &self.counters[row][subject as usize]
    }
}

/// Begins with three bytes: row, subject, deed.
fn answer_tcp(mut stream: TcpStream, counters: &Counters) -> std::io::Result<()> {
    let mut head = [0; 3];
    stream.read_exact(&mut head)?;
    deed(stream, &counters[head[0] as usize][head[1] as usize], head[2])
}

fn deed(mut stream: TcpStream, counter: &AtomicU64, deed: u8) -> std::io::Result<()> {
    match deed {
        b'd' => drain(&mut stream, counter, u64::MAX),
        b'p' => pour(&mut stream),
        _ => {
            counter.fetch_add(1, Ordering::Relaxed);
            stream.write_all(b"!")?;
            // Open for as long as the client likes.
            drain(&mut stream, &AtomicU64::new(0), u64::MAX)
        }
    }
}

fn drain(stream: &mut impl Read, counter: &AtomicU64, most: u64) -> std::io::Result<()> {
    let (mut buffer, mut left) = (vec![0; 16 << 10], most);
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = stream.read(&mut buffer[..wanted])? as u64;
        if bytes == 0 {
            return Ok(());
        }
        counter.fetch_add(bytes, Ordering::Relaxed);
        left -= bytes;
    }
    Ok(())
}

fn pour(stream: &mut TcpStream) -> std::io::Result<()> {
    let buffer = vec![7; 16 << 10];
    for _ in 0..POURED_BYTES / buffer.len() as u64 {
        stream.write_all(&buffer)?;
    }
    Ok(())
}

/// The path is /ROW/SUBJECT/DEED.
fn answer_http(mut stream: TcpStream, counters: &Counters) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut line, mut length, mut upgrade) = (String::new(), 0, false);
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim_end().to_ascii_lowercase();
            match header.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap_or(0),
                Some(("upgrade", _)) => upgrade = true,
                Some(_) => {}
                None => break,
            }
        }
        let words: Vec<&str> = path.split('/').skip(1).collect();
        let [row, subject, wanted] = words[..] else { return Ok(()) };
        let number = |word: &str| word.parse::<usize>().unwrap_or(0);
        let counter = &counters[number(row)][number(subject)];
        let wanted = wanted.as_bytes().first().copied().unwrap_or(b'w');
        if upgrade {
            stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n",
            )?;
            return deed(stream, counter, wanted);
        }
        match wanted {
            b'd' => drain(&mut reader, counter, length)?,
            b'p' => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {POURED_BYTES}\r\n\r\n")?;
                return pour(&mut stream);
            }
            _ => {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!")?;
    }
}

/// Each datagram begins with row, subject, deed. To one that wants to be poured, ten long answers.
fn answer_udp(socket: &UdpSocket, counters: &Counters) {
    let mut buffer = [0; 2048];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let Some([row, subject, deed]) = buffer[..count].first_chunk::<3>() else { continue };
        match deed {
            b'd' => {
                counters[*row as usize][*subject as usize].fetch_add(count as u64, Ordering::Relaxed);
            }
            b'p' => (0..10).for_each(|_| drop(socket.send_to(&[7; DATAGRAM_BYTES], from))),
            _ => drop(socket.send_to(&buffer[..count], from)),
        }
    }
}
