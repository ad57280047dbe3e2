//! The programs on the demo's hosts: small servers, and clients that send one request and report the outcome.
//!
//! A client asks the DNS of its site's gateway for the name, as a host there would, and then connects to the address in the answer.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use super::plan::{DemoCrossing, DemoNetwork, DemoOutcome, DemoRequest, DemoServer};

/// An answer that takes longer is none; over the loopback it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Silence is an answer, too, where UDP is refused. A query that was lost is asked again by the next round.
const UDP_PATIENCE: Duration = Duration::from_millis(700);
const WORDS: &[u8] = b"over the causeway";

/// A server of the demo with its socket.
pub enum BoundServer {
    Web(&'static str, TcpListener),
    Echo(TcpListener),
    UdpEcho(UdpSocket),
}

impl BoundServer {
    pub async fn bind(server: DemoServer, address: SocketAddr) -> io::Result<BoundServer> {
        Ok(match server {
            DemoServer::Web(name) => BoundServer::Web(name, TcpListener::bind(address).await?),
            DemoServer::Echo => BoundServer::Echo(TcpListener::bind(address).await?),
            DemoServer::UdpEcho => BoundServer::UdpEcho(UdpSocket::bind(address).await?),
        })
    }

    /// Serves until it is dropped.
    pub async fn serve(self) -> io::Result<()> {
        match self {
            BoundServer::Web(name, listener) => web(name, listener).await,
            BoundServer::Echo(listener) => echo(listener).await,
            BoundServer::UdpEcho(socket) => udp_echo(socket).await,
        }
    }
}

async fn web(name: &'static str, listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |_| async move {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(name.as_bytes()))))
            });
            // A client that disconnects early is no error.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

async fn echo(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
    }
}

async fn udp_echo(socket: UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; 65_535];
    loop {
        let (bytes, from) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..bytes], from).await?;
    }
}

/// The outcome of one crossing, and the address that was tried.
pub async fn attempt(stage: DemoNetwork, crossing: DemoCrossing) -> (DemoOutcome, Option<IpAddr>) {
    let source = crossing.source(stage);
    let address = match resolve(stage.dns(crossing.site), source, crossing.name).await {
        Ok(Some(address)) => address,
        Ok(None) => return (DemoOutcome::NoSuchName, None),
        Err(error) => return (DemoOutcome::Broken(format!("no DNS: {error}")), None),
    };
    let target = SocketAddr::new(address, stage.port(crossing.port));
    let outcome = match crossing.deed {
        DemoRequest::Get(path) => http(source, target, crossing.name, Method::GET, path).await,
        DemoRequest::Post(path) => http(source, target, crossing.name, Method::POST, path).await,
        DemoRequest::Tcp => tcp(source, target).await,
        DemoRequest::Udp => udp(source, target).await,
        DemoRequest::Name => Ok(DemoOutcome::Answered),
    };
    (outcome.unwrap_or_else(|error| of_error(&error)), Some(address))
}

fn of_error(error: &io::Error) -> DemoOutcome {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused | io::ErrorKind::BrokenPipe => {
            DemoOutcome::Reset
        }
        io::ErrorKind::TimedOut => DemoOutcome::Silence,
        _ => DemoOutcome::Broken(error.to_string()),
    }
}

/// Asks for the address of a name. None: there is no such name here.
async fn resolve(server: SocketAddr, source: IpAddr, name: &str) -> io::Result<Option<IpAddr>> {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let name = Name::from_ascii(format!("{name}.")).map_err(io::Error::other)?;
    let mut query = Message::query();
    query.metadata.id = NEXT.fetch_add(1, Ordering::Relaxed);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name, RecordType::A));
    let socket = UdpSocket::bind((source, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query.to_vec().map_err(io::Error::other)?).await?;
    let mut buffer = vec![0; 4096];
    let bytes = within(PATIENCE, socket.recv(&mut buffer)).await?;
    let answer = Message::from_vec(&buffer[..bytes]).map_err(io::Error::other)?;
    match answer.metadata.response_code {
        ResponseCode::NoError => {}
        ResponseCode::NXDomain => return Ok(None),
        code => return Err(io::Error::other(code.to_string())),
    }
    let addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        _ => None,
    });
    Ok(addresses.into_iter().next())
}

async fn connect(source: IpAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    within(PATIENCE, socket.connect(target)).await
}

async fn http(
    source: IpAddr,
    target: SocketAddr,
    host: &str,
    method: Method,
    path: &str,
) -> io::Result<DemoOutcome> {
    let stream = connect(source, target).await?;
    let asked = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header(http::header::HOST, host);
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap_or_default()).await?;
        let status = response.status().as_u16();
        response.into_body().collect().await?;
        connection.abort();
        Ok::<_, hyper::Error>(status)
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| io::ErrorKind::TimedOut)?;
    asked.map(DemoOutcome::Status).map_err(io::Error::other)
}

async fn tcp(source: IpAddr, target: SocketAddr) -> io::Result<DemoOutcome> {
    let mut stream = connect(source, target).await?;
    let spoken = async {
        stream.write_all(WORDS).await?;
        stream.shutdown().await?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await?;
        Ok(heard)
    };
    let heard = within(PATIENCE, spoken).await?;
    Ok(if heard == WORDS { DemoOutcome::Answered } else { DemoOutcome::Broken("another answer".to_owned()) })
}

async fn udp(source: IpAddr, target: SocketAddr) -> io::Result<DemoOutcome> {
    let socket = UdpSocket::bind((source, 0)).await?;
    socket.connect(target).await?;
    socket.send(WORDS).await?;
    let mut buffer = vec![0; 4096];
    let bytes = within(UDP_PATIENCE, socket.recv(&mut buffer)).await?;
    Ok(if &buffer[..bytes] == WORDS {
        DemoOutcome::Answered
    } else {
        DemoOutcome::Broken("another answer".to_owned())
    })
}

async fn within<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(time, work).await.map_err(|_| io::ErrorKind::TimedOut)?
}
