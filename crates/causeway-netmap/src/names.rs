//! Names and addresses as separate types: swapping two of them does not compile.
//!
//! Names are as in the objects, with their case; only DNS names are lower case.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

macro_rules! names {
    ($($(#[$about:meta])* $name:ident),*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Allows lookups with a `&str`.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }
    )*};
}

names!(
    /// An ESite.
    SiteName,
    /// An EGateway.
    GatewayName,
    /// An EService.
    ServiceName,
    /// An EServer by its metadata.name, which policies refer to.
    ServerName,
    /// An EPolicy.
    PolicyName,
    /// An ECommunity.
    CommunityName,
    /// A DNS name: lower case, without a trailing dot.
    DnsName
);

macro_rules! from_text {
    ($($name:ident),*) => {$(
        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> $name {
                $name(text.into())
            }
        }
    )*};
}

from_text!(SiteName, GatewayName, ServiceName, ServerName, PolicyName, CommunityName);

impl DnsName {
    pub fn new(text: &str) -> DnsName {
        DnsName(text.trim_end_matches('.').to_ascii_lowercase().into())
    }
}

/// A local address that stands for a remote service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PresenceIp(pub IpAddr);

impl fmt::Display for PresenceIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
