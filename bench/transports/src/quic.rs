//! QUIC, once with quinn and once with noq.
//!
//! noq is a fork of quinn, so that one text serves both; what differs is named by the macro's arguments.

use std::net::{SocketAddr, UdpSocket};

use anyhow::Result;

fn socket(address: SocketAddr, buffer_bytes: usize) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, buffer_bytes)?;
    rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, buffer_bytes)?;
    Ok(socket)
}

macro_rules! quic_link {
    ($module:ident, $quic:ident, $bbr:ident) => {
        pub mod $module {
            use std::net::{Ipv4Addr, SocketAddr};
            use std::sync::Arc;

            use anyhow::{Result, bail};
            use futures::future::BoxFuture;
            use futures::{StreamExt, TryStreamExt, stream};
            use $quic::congestion::{CubicConfig, $bbr};
            use $quic::crypto::rustls::{QuicClientConfig, QuicServerConfig};
            use $quic::{
                AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig,
                TokioRuntime, TransportConfig, VarInt,
            };

            use crate::identity::{Identity, SERVER_NAME};
            use crate::link::{Link, Serve, Stream, Tuning};

            pub async fn serve(
                listen: SocketAddr,
                identity: &Identity,
                tuning: Tuning,
                serve: Serve,
            ) -> Result<()> {
                let tls = QuicServerConfig::try_from(identity.server("bench")?)?;
                let mut config = ServerConfig::with_crypto(Arc::new(tls));
                config.transport_config(Arc::new(transport(&tuning)?));
                let socket = super::socket(listen, tuning.socket_buffer_bytes)?;
                let endpoint =
                    Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
                while let Some(incoming) = endpoint.accept().await {
                    tokio::spawn(async move {
                        let Ok(connection) = incoming.await else { return };
                        while let Ok((send, recv)) = connection.accept_bi().await {
                            tokio::spawn(serve(Stream { send: Box::new(send), recv: Box::new(recv) }));
                        }
                    });
                }
                Ok(())
            }

            pub async fn connect(
                peer: SocketAddr,
                identity: &Identity,
                tuning: Tuning,
                count: usize,
            ) -> Result<Vec<Arc<dyn Link>>> {
                let tls = QuicClientConfig::try_from(identity.client("bench")?)?;
                let mut config = ClientConfig::new(Arc::new(tls));
                config.transport_config(Arc::new(transport(&tuning)?));
                let socket = super::socket((Ipv4Addr::UNSPECIFIED, 0).into(), tuning.socket_buffer_bytes)?;
                let endpoint =
                    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
                let dial = |_| async {
                    let connection = endpoint.connect_with(config.clone(), peer, SERVER_NAME)?.await?;
                    anyhow::Ok(Arc::new(Dialled { connection, _endpoint: endpoint.clone() }) as Arc<dyn Link>)
                };
                stream::iter(0..count).map(dial).buffer_unordered(16).try_collect().await
            }

            fn transport(tuning: &Tuning) -> Result<TransportConfig> {
                let mut config = TransportConfig::default();
                config
                    .stream_receive_window(tuning.stream_window_bytes.into())
                    .receive_window(tuning.connection_window_bytes.into())
                    .send_window(tuning.send_window_bytes)
                    .max_concurrent_bidi_streams(VarInt::from_u32(4096))
                    .max_concurrent_uni_streams(VarInt::from_u32(0));
                if tuning.ack_frequency {
                    config.ack_frequency_config(Some(AckFrequencyConfig::default()));
                }
                match tuning.congestion.as_str() {
                    "cubic" => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
                    "bbr" => config.congestion_controller_factory(Arc::new($bbr::default())),
                    other => bail!("no congestion control {other}"),
                };
                Ok(config)
            }

            struct Dialled {
                connection: Connection,
                _endpoint: Endpoint,
            }

            impl Link for Dialled {
                fn open(&self) -> BoxFuture<'_, Result<Stream>> {
                    Box::pin(async {
                        let (send, recv) = self.connection.open_bi().await?;
                        Ok(Stream { send: Box::new(send), recv: Box::new(recv) })
                    })
                }
            }
        }
    };
}

quic_link!(quinn_link, quinn, BbrConfig);
quic_link!(noq_link, noq, Bbr3Config);
