//! The cloud's own certificate, for the API and the channel port, and the TLS settings built on it.
//!
//! Names follow the configuration, the CA follows the stored set, and both are reconciled: whenever something
//! differs from what is shown, a new certificate is made and swapped in while connections go on. Key and
//! certificate live in memory only; a restart makes new ones.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use causeway_api::sync::MutexExt;
use causeway_channel::key::CertificateRequest;
use causeway_channel::link::{CHANNEL_ALPN, REPLICA_ALPN};
use causeway_channel::tls::{self, TlsCredentials, TlsError};
use causeway_channel::{ChannelEndpoint, KeyHash, PeerId, PrivateKey, wire};
use rustls::ServerConfig;

use super::authority::{AuthorityError, CertificateSubject, CloudServerName, SERVER_LIFETIME};
use super::ca_store::CaSet;

/// The live TLS settings. Listeners take the current one for each connection.
#[derive(Debug)]
pub struct ServingTls {
    api: Arc<ArcSwap<ServerConfig>>,
    channel: Arc<ArcSwap<ServerConfig>>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    names: Vec<CloudServerName>,
    authority: KeyHash,
    trusted: Vec<KeyHash>,
    not_before: SystemTime,
    not_after: SystemTime,
}

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ServingTls {
    pub fn new(
        names: Vec<CloudServerName>,
        cas: &CaSet,
        now: SystemTime,
    ) -> Result<ServingTls, ServingError> {
        let made = make(names, cas, now)?;
        Ok(ServingTls {
            api: Arc::new(ArcSwap::from_pointee(made.api)),
            channel: Arc::new(ArcSwap::from_pointee(made.channel)),
            shown: Mutex::new(made.shown),
        })
    }

    pub fn api(&self) -> Arc<ArcSwap<ServerConfig>> {
        self.api.clone()
    }

    pub fn channel(&self) -> Arc<ArcSwap<ServerConfig>> {
        self.channel.clone()
    }

    /// When the certificate that is shown ends.
    pub fn not_after(&self) -> SystemTime {
        self.shown.lock_ignoring_poison().not_after
    }

    /// Makes and shows a new certificate if the present one does not fit any more.
    pub fn reconcile(
        &self,
        names: Vec<CloudServerName>,
        cas: &CaSet,
        now: SystemTime,
    ) -> Result<bool, ServingError> {
        let mut shown = self.shown.lock_ignoring_poison();
        if !is_due(&shown, &names, cas, now) {
            return Ok(false);
        }
        let made = make(names, cas, now)?;
        self.api.store(Arc::new(made.api));
        self.channel.store(Arc::new(made.channel));
        *shown = made.shown;
        Ok(true)
    }
}

fn is_due(shown: &Shown, names: &[CloudServerName], cas: &CaSet, now: SystemTime) -> bool {
    shown.names != names
        || shown.authority != cas.serving().id()
        || shown.trusted != cas.ids()
        || super::is_past_two_thirds(shown.not_before, shown.not_after, now)
}

struct Made {
    api: ServerConfig,
    channel: ServerConfig,
    shown: Shown,
}

fn make(names: Vec<CloudServerName>, cas: &CaSet, now: SystemTime) -> Result<Made, ServingError> {
    let key = PrivateKey::generate().map_err(AuthorityError::Key)?;
    let spki = spki(&key)?;
    let subject = CertificateSubject::Server { names: names.clone() };
    let signed = cas.serving().sign(&subject, &spki, now, SERVER_LIFETIME)?;
    let shown = Shown {
        names,
        authority: cas.serving().id(),
        trusted: cas.ids(),
        not_before: signed.not_before,
        not_after: signed.not_after,
    };
    // The CAs go along for edges that know only a hash of one of them.
    let mut chain = vec![signed.certificate];
    chain.extend(cas.bundle());
    let credentials = TlsCredentials { chain, key: key.to_der() };
    let bundle = cas.bundle();
    let api = tls::server(credentials.clone(), &bundle, &[b"h2", b"http/1.1"])?;
    let channel = tls::server(credentials, &bundle, &[CHANNEL_ALPN, REPLICA_ALPN, wire::ALPN])?;
    Ok(Made { api, channel, shown })
}

/// The public half of a key of our own.
pub(super) fn spki(key: &PrivateKey) -> Result<Vec<u8>, AuthorityError> {
    let nobody = PeerId::new("cloud", "cloud").expect("the constant is a name");
    let request = CertificateRequest::read(&key.request(&nobody)?)
        .expect("a request just made with this key can be read");
    Ok(request.spki)
}

/// Every name under which clients may reach this cloud. A wildcard listener is reached under the machine's
/// `outward` addresses, which may change while it runs.
pub fn names(
    advertise: &[ChannelEndpoint],
    listen: &[SocketAddr],
    extra: &[String],
    host: &str,
    outward: &[IpAddr],
) -> Vec<CloudServerName> {
    let mut names = vec![
        CloudServerName::Dns(tls::CLOUD_NAME.to_owned()),
        CloudServerName::Dns("localhost".to_owned()),
        CloudServerName::Ip(IpAddr::from([127, 0, 0, 1])),
        CloudServerName::Ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])),
    ];
    names.extend(server_name(host));
    names.extend(advertise.iter().filter_map(|endpoint| server_name(endpoint.host())));
    names.extend(extra.iter().filter_map(|name| server_name(name)));
    let (wildcards, addresses): (Vec<_>, Vec<_>) =
        listen.iter().map(SocketAddr::ip).partition(IpAddr::is_unspecified);
    names.extend(addresses.into_iter().map(CloudServerName::Ip));
    if !wildcards.is_empty() {
        names.extend(outward.iter().copied().map(CloudServerName::Ip));
    }
    names.sort();
    names.dedup();
    names
}

// A host name that no certificate can hold (two dots in a row, say) is left out: no client could verify it anyway.
fn server_name(text: &str) -> Option<CloudServerName> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(CloudServerName::Ip(address));
    }
    let name = rustls_pki_types::DnsName::try_from(text.to_ascii_lowercase()).ok()?;
    Some(CloudServerName::Dns(name.as_ref().to_owned()))
}

/// The outward addresses of this machine: the source addresses of packets to other hosts. Nothing is sent.
pub fn outward_addresses() -> Vec<IpAddr> {
    // Documentation addresses (RFC 5737, RFC 3849): routed like any foreign host, and assigned to no host.
    let probes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let outward = |(local, remote)| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(remote).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    probes.into_iter().filter_map(outward).filter(|ip| !ip.is_unspecified() && !ip.is_loopback()).collect()
}

/// The host name of the machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_configuration() {
        let advertise: Vec<ChannelEndpoint> = ["Cloud.Example:7444", "[2001:db8::7]:7444", "bad..name:1"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let listen =
            ["0.0.0.0:7443".parse().unwrap(), "10.1.2.3:7444".parse().unwrap(), "[::]:1".parse().unwrap()];
        let names = names(
            &advertise,
            &listen,
            &["api.example".into(), "10.1.2.3".into()],
            "host-1",
            &["10.9.9.9".parse().unwrap()],
        );
        let has = |text: &str| names.contains(&server_name(text).unwrap());
        for name in [
            "cloud.example",
            "2001:db8::7",
            "10.1.2.3",
            "api.example",
            "host-1",
            "10.9.9.9",
            "localhost",
            "127.0.0.1",
            "::1",
            tls::CLOUD_NAME,
        ] {
            assert!(has(name), "{name} in {names:?}");
        }
        assert_eq!(names.len(), 10, "no wildcard address, nothing twice, nothing unusable: {names:?}");
    }
}
