//! Decides which addresses a gateway may dial, and connects to exactly the address that was checked.
//!
//! Input: addresses from the netmap, which any client with write access at the cloud can set, and the site's
//! own configuration (`[gateway] backends-allow`, `backends-deny`), which has precedence. Output: a
//! connection or a `Denied`. `judge` is the whole decision and pure; `BackendDialer` calls it before every
//! connection to a backend or a node. Upstream DNS resolvers come from local configuration and are not
//! dialled here.

mod rule;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use causeway_daemon::sync::{MutexExt, RwLockExt};
use tokio::net::{TcpStream, UdpSocket};

pub use rule::BackendRule;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SocketProtocol {
    Tcp,
    Udp,
}

/// The dial rules of the local configuration.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DialRules {
    pub allow: Vec<BackendRule>,
    pub deny: Vec<BackendRule>,
}

/// The reason why an address is not dialled. The text holds no address: clients of other sites may read it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denied {
    #[error("it is a listener of the gateway itself ({name})")]
    OwnListener { name: &'static str },
    #[error("it is {kind} address, which the gateway's configuration does not allow (backends-allow)")]
    Special { kind: &'static str },
    #[error("the gateway's configuration denies its address (backends-deny)")]
    Configured,
    #[error("services are switched off at the gateway ([gateway] services-off)")]
    SwitchedOff,
}

impl Denied {
    /// The denial inside an error of `BackendDialer`.
    pub fn of(error: &io::Error) -> Option<&Denied> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Denied> for io::Error {
    fn from(denied: Denied) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, denied)
    }
}

/// Networks that are dialled only when `backends-allow` names them, with a description for the error text.
const SPECIAL: [(IpAddr, u8, &str); 8] = [
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16, "a link-local"),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10, "a link-local"),
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8, "an unspecified"),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128, "an unspecified"),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4, "a multicast"),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8, "a multicast"),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32, "a broadcast"),
    // Reserved since 1989 and not in use; old network stacks treat it as broadcast.
    (IpAddr::V4(Ipv4Addr::new(240, 0, 0, 0)), 4, "a reserved"),
];

/// Checks whether this address may be dialled.
///
/// A listener of this gateway is always denied. Otherwise the most specific rule decides: the longest
/// network, then the fewest ports. Among equally specific rules `deny` wins over `allow`, and both win over
/// the built-in rules for special networks. Without a matching rule the address is allowed. `is_local` tells
/// whether an address belongs to this host; it is called only when the result depends on it.
pub fn check_address(
    rules: &DialRules,
    own: &[Registered],
    is_local: impl Fn(IpAddr) -> bool,
    transport: SocketProtocol,
    address: SocketAddr,
) -> Result<(), Denied> {
    let (ip, port) = (address.ip().to_canonical(), address.port());
    let ours = own.iter().find(|known| {
        known.transport == transport
            && known.address.port() == port
            && reaches(ip, known.address.ip(), &is_local)
    });
    if let Some(known) = ours {
        return Err(Denied::OwnListener { name: known.name });
    }
    judge_by_rules(rules, ip, port)?;
    // A NAT64 translator on the path would dial the embedded IPv4 address.
    embedded(ip).map_or(Ok(()), |ip| judge_by_rules(rules, ip.into(), port))
}

fn judge_by_rules(rules: &DialRules, ip: IpAddr, port: u16) -> Result<(), Denied> {
    // The rule with the greatest key decides: the most specific one, then the one with the higher strength.
    let found = |rules: &[BackendRule], strength: u8| {
        let fitting = rules.iter().filter(|rule| rule.contains(ip, port));
        fitting.map(|rule| (rule.specificity(), strength)).max()
    };
    let special = SPECIAL.iter().filter(|(network, bits, _)| is_in(ip, *network, *bits));
    let special = special.max_by_key(|(_, bits, _)| *bits);
    let denied = found(&rules.deny, 2);
    let allowed = found(&rules.allow, 1);
    let built_in = special.map(|(_, bits, _)| (BackendRule::specificity_of(*bits, 1, u16::MAX), 0));
    match special {
        _ if denied > allowed && denied > built_in => Err(Denied::Configured),
        Some((.., kind)) if built_in > allowed => Err(Denied::Special { kind }),
        _ => Ok(()),
    }
}

fn is_in(ip: IpAddr, network: IpAddr, bits: u8) -> bool {
    ipnet::IpNet::new(network, bits).is_ok_and(|network| network.contains(&ip))
}

/// Tells whether a connection to `ip` arrives at a listener bound to `bound`.
fn reaches(ip: IpAddr, bound: IpAddr, is_local: impl Fn(IpAddr) -> bool) -> bool {
    let bound = bound.to_canonical();
    if bound == ip {
        return true;
    }
    // By default an IPv6 socket on the unspecified address accepts IPv4 as well.
    let takes_family = bound.is_ipv6() || ip.is_ipv4();
    match (bound.is_unspecified(), ip.is_unspecified()) {
        (true, true) => takes_family,
        // The kernel treats an unspecified destination as loopback.
        (false, true) => bound.is_loopback() && bound.is_ipv4() == ip.is_ipv4(),
        (true, false) => takes_family && (ip.is_loopback() || is_local(ip)),
        (false, false) => false,
    }
}

/// Returns the IPv4 address inside an IPv6 address: behind the well-known NAT64 prefix (RFC 6052, 2.1), or
/// IPv4-compatible (RFC 4291, 2.5.5.1). IPv4-mapped addresses are canonical already.
fn embedded(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [head @ .., a, b, c, d] = ip.octets();
    let is_nat64 = head == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    let is_compatible = head == [0; 12] && !ip.is_unspecified() && !ip.is_loopback();
    (is_nat64 || is_compatible).then(|| Ipv4Addr::new(a, b, c, d))
}

/// The addresses on which this process listens, each registered while it is bound: they are never dialled. The role registers
/// admin, API, channel and CONNECT; the gateway registers DNS, presences and entries. Clones share the registry.
#[derive(Clone, Default, Debug)]
pub struct OwnListeners {
    known: Arc<Mutex<Known>>,
}

#[derive(Default, Debug)]
struct Known {
    next: u64,
    /// Replaced on change: readers take the current value without a copy.
    listeners: Arc<Vec<Registered>>,
}

/// One listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    id: u64,
    pub name: &'static str,
    pub transport: SocketProtocol,
    /// The address as bound: port 0 is never registered.
    pub address: SocketAddr,
}

/// Keeps a listener registered until it is dropped.
#[derive(Debug)]
#[must_use = "the listener is registered as long as this lives"]
pub struct OwnListener {
    listeners: OwnListeners,
    id: u64,
}

impl OwnListeners {
    /// `name` is the operator's term for the listener: `admin`, `presence`.
    pub fn register(
        &self,
        name: &'static str,
        transport: SocketProtocol,
        address: SocketAddr,
    ) -> OwnListener {
        OwnListener { listeners: self.clone(), id: self.keep(name, transport, address) }
    }

    /// Registers a listener that lives as long as the process.
    pub fn keep(&self, name: &'static str, transport: SocketProtocol, address: SocketAddr) -> u64 {
        let mut known = self.lock();
        let id = known.next;
        known.next += 1;
        Arc::make_mut(&mut known.listeners).push(Registered { id, name, transport, address });
        id
    }

    pub fn registered(&self) -> Arc<Vec<Registered>> {
        self.lock().listeners.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock_ignoring_poison()
    }
}

impl Drop for OwnListener {
    fn drop(&mut self) {
        Arc::make_mut(&mut self.listeners.lock().listeners).retain(|known| known.id != self.id);
    }
}

/// The rules in force, which can be replaced while the gateway runs. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct SharedDialRules(Arc<RwLock<Arc<DialRules>>>);

impl SharedDialRules {
    pub fn current(&self) -> Arc<DialRules> {
        self.0.read_ignoring_poison().clone()
    }

    /// Puts other rules in force for connections that are dialled from now on. Open connections stay.
    pub fn replace(&self, rules: DialRules) {
        *self.0.write_ignoring_poison() = Arc::new(rules);
    }
}

impl From<DialRules> for SharedDialRules {
    fn from(rules: DialRules) -> SharedDialRules {
        SharedDialRules(Arc::new(RwLock::new(Arc::new(rules))))
    }
}

/// Connects to backends and nodes whose addresses may be dialled. Clones share the rules and the registry.
#[derive(Clone, Default, Debug)]
pub struct BackendDialer {
    rules: SharedDialRules,
    own: OwnListeners,
    /// Services are switched off: every address is denied.
    is_off: bool,
}

impl BackendDialer {
    pub fn new(rules: impl Into<SharedDialRules>, own: OwnListeners) -> BackendDialer {
        BackendDialer { rules: rules.into(), own, is_off: false }
    }

    /// Denies every address if `is_off`.
    pub fn switched_off(self, is_off: bool) -> BackendDialer {
        BackendDialer { is_off, ..self }
    }

    /// Checks whether this address may be dialled now.
    pub fn check(&self, transport: SocketProtocol, address: SocketAddr) -> Result<(), Denied> {
        if self.is_off {
            return Err(Denied::SwitchedOff);
        }
        check_address(&self.rules.current(), &self.own.registered(), is_local, transport, address)
    }

    pub async fn connect_tcp(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.check(SocketProtocol::Tcp, address)?;
        TcpStream::connect(address).await
    }

    /// Connects to the first of these addresses that may be dialled and accepts the connection.
    pub async fn connect_first(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address to dial");
        for address in addresses {
            match self.connect_tcp(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Opens a UDP socket that exchanges datagrams with this address only.
    pub async fn connect_udp(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        self.check(SocketProtocol::Udp, address)?;
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        Ok(socket)
    }
}

/// The addresses are read at each call: they change at runtime, and the call is rare.
fn is_local(ip: IpAddr) -> bool {
    let Ok(interfaces) = getifaddrs::getifaddrs() else { return true };
    interfaces
        .into_iter()
        .filter_map(|interface| interface.address.ip_addr())
        .any(|own| own.to_canonical() == ip)
}

/// Period of TCP keepalive. It finds dead hosts; the idle timeout is for peers whose kernels answer and that send nothing.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Sets the options of a socket to a client or a backend: small writes are sent at once, and dead peers are found.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A kernel that does not know the option does not pace either.
    let _ = causeway_channel::tcp::unpace(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
