//! Posts a body to a collector over HTTP/1.1, with or without TLS. One connection for each request: batches are large and rare.

use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::CollectorError;
use super::tls::{self, TlsFiles};

/// An answer says at most how many records were refused.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A collector that takes requests.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    pub url: Uri,
    /// File with a bearer token, read for each request.
    pub token_file: Option<PathBuf>,
    /// The CA of the collector. None: those that the host trusts.
    pub ca: Option<PathBuf>,
}

impl HttpTarget {
    /// Posts JSON and returns the answer to a request that was accepted (2xx).
    pub async fn post(
        &self,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<Bytes, CollectorError> {
        let authority = self.url.authority().map(ToString::to_string).unwrap_or_default();
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path)
            .header(header::HOST, &authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("causeway/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(path) = &self.token_file {
            let token = tokio::fs::read_to_string(path)
                .await
                .map_err(|source| CollectorError::File { path: path.clone(), source })?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let is_tls = self.url.scheme_str() == Some("https");
        let host = self.url.host().unwrap_or_default();
        let port = self.url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        match is_tls {
            true => {
                let files = TlsFiles { ca: self.ca.clone(), client: None };
                exchange(tls::connect(&files, host, stream).await?, request).await
            }
            false => exchange(stream, request).await,
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Bytes, CollectorError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchanged = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        // A status that came is an answer, also when the rest of it did not.
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Ok::<_, hyper::Error>((status, body))
    };
    let mut exchanged = std::pin::pin!(exchanged);
    let mut connection = std::pin::pin!(connection);
    let mut is_open = true;
    let (status, body): (StatusCode, Bytes) = loop {
        tokio::select! {
            answered = &mut exchanged => break answered?,
            ended = &mut connection, if is_open => {
                is_open = false;
                ended?;
            }
        }
    };
    match status.is_success() {
        true => Ok(body),
        false => Err(CollectorError::Refused { status: status.as_u16() }),
    }
}
