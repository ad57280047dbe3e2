//! A small HTTPS client that sends exactly the bytes it is told to, good ones and bad ones.
//!
//! Blocking, HTTP/1.1, one connection per request, so that a test can say what happens to each. Real TLS with the CA of
//! a kubeconfig. Not a client for general use: it follows nothing, repeats nothing and trusts the answer's form.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Generous: a busy machine, a debug build. A server that says nothing for this long hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server, the CA that is trusted, and the client certificate.
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    authorities: Vec<CertificateDer<'static>>,
    tls: Arc<ClientConfig>,
    bearer: Option<String>,
}

/// A certificate and its key.
pub struct Credentials {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Client {
    /// The user of a kubeconfig that `causeway` wrote.
    pub fn from_kubeconfig(path: &Path) -> Result<Client> {
        let text = std::fs::read_to_string(path)?;
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
            found.with_context(|| format!("{name} is missing in {}", path.display()))
        };
        let data = |name: &str| -> Result<Vec<u8>> { Ok(STANDARD.decode(field(name)?)?) };
        let server = field("server")?.strip_prefix("https://").context("the server speaks HTTPS")?;
        let authorities = certificates(&data("certificate-authority-data")?)?;
        let chain = certificates(&data("client-certificate-data")?)?;
        let key = PrivateKeyDer::from_pem_slice(&data("client-key-data")?)?;
        let nobody =
            Client { address: server.parse()?, tls: config(&authorities, None)?, authorities, bearer: None };
        nobody.with_certificate(Credentials { chain, key })
    }

    /// The same server, without any credentials.
    pub fn nobody(&self) -> Result<Client> {
        Ok(Client { tls: config(&self.authorities, None)?, bearer: None, ..self.clone() })
    }

    pub fn with_bearer(&self, token: &str) -> Result<Client> {
        Ok(Client { bearer: Some(token.to_owned()), ..self.nobody()? })
    }

    pub fn with_certificate(&self, credentials: Credentials) -> Result<Client> {
        Ok(Client { tls: config(&self.authorities, Some(credentials))?, bearer: None, ..self.clone() })
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send(&Request::new("GET", path))
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(&Request::new("POST", path).json(body))
    }

    /// Sends one request and reads the whole answer.
    pub fn send(&self, request: &Request) -> Result<Answer> {
        let mut stream = self.connect()?;
        // A server that has seen enough answers and closes; what it said is what counts.
        let written = stream.write_all(&self.encode(request)).and_then(|()| stream.flush());
        let answer = Head::read(&mut stream).and_then(|head| head.with_body(&mut stream));
        match (answer, written) {
            (Err(_), Err(error)) => Err(error.into()),
            (answer, _) => answer,
        }
    }

    /// Sends one request, reads the answer, and keeps the connection open until the value is dropped.
    pub fn hold(&self, path: &str) -> Result<impl Sized + use<>> {
        let mut stream = self.connect()?;
        let text = String::from_utf8(self.encode(&Request::new("GET", path)))?;
        stream.write_all(text.replace("connection: close", "connection: keep-alive").as_bytes())?;
        stream.flush()?;
        let answer = Head::read(&mut stream)?.with_body(&mut stream)?;
        ensure!(answer.code == 200, "{}: {}", answer.code, answer.text());
        Ok(stream)
    }

    /// Begins a watch; its lines come as they come.
    pub fn watch(&self, path: &str) -> Result<Watch> {
        let mut stream = self.connect()?;
        stream.write_all(&self.encode(&Request::new("GET", path)))?;
        stream.flush()?;
        let head = Head::read(&mut stream)?;
        if head.code != 200 {
            let answer = head.with_body(&mut stream)?;
            bail!("{}: {}", answer.code, answer.text());
        }
        ensure!(head.is_chunked(), "a watch comes in chunks");
        Ok(Watch { lines: BufReader::new(Chunks { stream, left: 0, ended: false }) })
    }

    fn connect(&self) -> Result<BufReader<Stream>> {
        let tcp = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        tcp.set_read_timeout(Some(TIMEOUT))?;
        tcp.set_write_timeout(Some(TIMEOUT))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let tls = ClientConnection::new(self.tls.clone(), name)?;
        Ok(BufReader::new(Stream(StreamOwned::new(tls, tcp))))
    }

    fn encode(&self, request: &Request) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
        let mut add = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        add("host", &self.address.to_string());
        add("connection", "close");
        if let Some(token) = &self.bearer {
            add("authorization", &format!("Bearer {token}"));
        }
        for (name, value) in &request.headers {
            add(name, value);
        }
        if let Some(body) = &request.body
            && !request.headers.iter().any(|(name, _)| name == "content-length")
        {
            add("content-length", &body.len().to_string());
        }
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(request.body.as_deref().unwrap_or_default());
        bytes
    }
}

/// TLS, with a BufReader around it that is also written through.
struct Stream(StreamOwned<ClientConnection, TcpStream>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

trait WriteThrough {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()>;
    fn flush(&mut self) -> std::io::Result<()>;
}

impl WriteThrough for BufReader<Stream> {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.get_mut().0.write_all(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.get_mut().0.flush()
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?)
}

fn config(
    authorities: &[CertificateDer<'static>],
    credentials: Option<Credentials>,
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match credentials {
        None => builder.with_no_client_auth(),
        Some(Credentials { chain, key }) => builder.with_client_auth_cert(chain, key)?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A request. Nothing is checked or escaped.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Request {
        Request { method: method.into(), path: path.into(), headers: Vec::new(), body: None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    pub fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Request {
        self.body = Some(body.into());
        self.header("content-type", content_type)
    }

    pub fn json(self, body: &Value) -> Request {
        self.body("application/json", body.to_string())
    }
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body of an answer that must be a success.
    pub fn success(self) -> Result<Value> {
        ensure!((200..300).contains(&self.code), "{}: {}", self.code, self.text());
        Ok(serde_json::from_slice(&self.body)?)
    }

    pub fn headers_named(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }
}

struct Head {
    code: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn read(stream: &mut impl BufRead) -> Result<Head> {
        let line = read_line(stream)?;
        let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.with_context(|| format!("{line:?} is no answer in HTTP"))?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(stream)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Head { code, headers })
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.value("transfer-encoding") == Some("chunked")
    }

    fn with_body<S: BufRead>(self, stream: &mut S) -> Result<Answer> {
        let mut body = Vec::new();
        if self.is_chunked() {
            Chunks { stream, left: 0, ended: false }.read_to_end(&mut body)?;
        } else if let Some(length) = self.value("content-length") {
            stream.take(length.parse()?).read_to_end(&mut body)?;
        }
        Ok(Answer { code: self.code, headers: self.headers, body })
    }
}

fn read_line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    ensure!(line.ends_with(b"\n"), "the server closed the connection");
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// The bytes inside of chunked transfer coding.
struct Chunks<S> {
    stream: S,
    left: u64,
    ended: bool,
}

impl<S: BufRead> Read for Chunks<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let size = read_line(&mut self.stream).map_err(std::io::Error::other)?;
            self.left = u64::from_str_radix(&size, 16).map_err(std::io::Error::other)?;
            if self.left == 0 {
                self.ended = true;
                return Ok(0);
            }
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.stream.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 {
            read_line(&mut self.stream).map_err(std::io::Error::other)?;
        }
        Ok(count)
    }
}

/// A running watch.
pub struct Watch {
    lines: BufReader<Chunks<BufReader<Stream>>>,
}

impl Watch {
    /// The next event; none when the server ended the watch.
    pub fn next_event(&mut self) -> Result<Option<Value>> {
        let mut line = Vec::new();
        match self.lines.read_until(b'\n', &mut line)? {
            0 => Ok(None),
            _ => Ok(Some(serde_json::from_slice(&line)?)),
        }
    }

    /// Reads on until an event is the one that is looked for.
    pub fn find(&mut self, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        while let Some(event) = self.next_event()? {
            if wanted(&event) {
                return Ok(event);
            }
        }
        bail!("the watch ended before: {what}")
    }
}
