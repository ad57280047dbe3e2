//! CONNECT listeners of the cloud's gateway: the Unix socket `run/connect.sock` in the data dir and, when one is
//! configured, a TLS port that requires a client certificate.

use std::sync::Arc;

use causeway_daemon::DataDir;
use causeway_gateway::Gateway;
use causeway_gateway::proxy::connect::{ConnectAuthorizer, ConnectTlsListener, ConnectUnixListener};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::identity::Registrar;

/// In the data dir.
const SOCKET: &str = "run/connect.sock";

/// Listeners that are bound and not served yet.
pub struct ConnectListeners {
    unix: Option<ConnectUnixListener>,
    tls: Option<ConnectTlsListener>,
}

impl ConnectListeners {
    pub fn open(
        data_dir: &DataDir,
        listener: Option<TcpListener>,
        registrar: &Arc<Registrar>,
    ) -> ConnectListeners {
        let path = data_dir.join(SOCKET);
        // This listener was not configured, so a failure does not stop the start: paths of sockets must be
        // short, disks may be full.
        let bound = data_dir
            .folder("run")
            .map_err(std::io::Error::other)
            .and_then(|_| ConnectUnixListener::bind(&path));
        let unix = bound.inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot bind the Unix socket for CONNECT: the listener is off");
        });
        let authorizer = Arc::new(RegistrarAuthorizer { registrar: registrar.clone() });
        ConnectListeners {
            unix: unix.ok(),
            tls: listener.map(|listener| ConnectTlsListener { listener, authorizer }),
        }
    }

    /// Serves every CONNECT listener until told to stop.
    pub async fn run(self, gateway: Gateway, stop: CancellationToken) {
        let unix = async {
            if let Some(listener) = self.unix {
                gateway.run_connect_unix(listener, stop.clone()).await;
            }
        };
        let tls = async {
            if let Some(listener) = self.tls {
                gateway.run_connect_tls(listener, stop.clone()).await;
            }
        };
        tokio::join!(unix, tls, stop.cancelled());
    }
}

/// Knows certificates of our own CA.
struct RegistrarAuthorizer {
    registrar: Arc<Registrar>,
}

impl ConnectAuthorizer for RegistrarAuthorizer {
    fn tls(&self) -> Arc<rustls::ServerConfig> {
        let mut config = rustls::ServerConfig::clone(&self.registrar.api_tls().load());
        // Go offers HTTP/2 to a proxy as well, and would speak it.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    fn admit(&self, certificate: Option<&CertificateDer<'_>>) -> Result<(), String> {
        let admitted = self.registrar.may_connect(certificate);
        admitted.map_err(|failure| format!("CONNECT needs a certificate as in DATA_DIR/connect: {failure}"))
    }
}
