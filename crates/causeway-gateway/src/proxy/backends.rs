//! Finds a backend that answers.

use std::io;
use std::time::Duration;

use causeway_netmap::{Backend, Service, View};
use tokio::net::TcpStream;

use crate::gateway::Options;
use crate::policy::Refusal;

/// The backends of the services that run here.
pub struct Backends {
    connect_timeout: Duration,
}

impl Backends {
    pub fn new(options: &Options) -> Backends {
        Backends { connect_timeout: options.connect_timeout }
    }

    /// A netmap has arrived.
    pub fn follow(&self, _: &View) {}

    /// Connects to a backend of the service.
    pub async fn dial(&self, service: &Service) -> Result<TcpStream, Refusal> {
        for backend in &service.backends {
            match self.connect(backend).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    tracing::debug!(service = %service.name, ?backend, %error, "a backend does not answer")
                }
            }
        }
        Err(Refusal::BackendDown { service: service.name.clone() })
    }

    async fn connect(&self, backend: &Backend) -> io::Result<TcpStream> {
        let connecting = async {
            match backend {
                Backend::Address(ip, port) => TcpStream::connect((*ip, *port)).await,
                Backend::Host(name, port) => TcpStream::connect((name.as_str(), *port)).await,
            }
        };
        let stream = tokio::time::timeout(self.connect_timeout, connecting).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
