//! Client of collectors of records and traces: posts bodies over HTTP/1.1, with or without TLS, and opens TLS connections for other protocols.
//!
//! Encodings, batches and retries belong to the callers. Files of certificates and tokens are read for each connection.

mod http;
mod tls;

use std::io;
use std::path::PathBuf;

pub use self::http::HttpTarget;
pub use self::tls::{TlsFiles, connect};

/// Why a collector did not take a batch.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} holds no certificate or key that can be used", path.display())]
    Pem { path: PathBuf },
    #[error("the TLS settings cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("{0} is no name or address of a host")]
    Host(String),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the request failed")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be made")]
    Request(#[from] ::http::Error),
    #[error("the collector answered {status}")]
    Refused { status: u16 },
    #[error("no answer within {seconds} seconds")]
    Timeout { seconds: u64 },
}
