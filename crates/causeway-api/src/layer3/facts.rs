//! Facts about layer 3 that are stored beside the objects: one record per gateway, one per community.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::object_set::ObjectSet;

/// Everything about layer 3 that is stored beside the objects.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Layer3Facts {
    /// The tunnels of gateways, by gateway.
    pub tunnels: BTreeMap<String, TunnelRecord>,
    /// The allocated ranges, by community.
    pub ranges: BTreeMap<String, Vec<MappedRange>>,
}

/// The tunnel of one gateway, as it reported it when its session began.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelRecord {
    /// Base64 of 32 bytes.
    pub public_key: String,
    /// The gateway's own UDP port.
    pub port: u16,
    /// The gateway has AES instructions.
    pub aes: bool,
    /// Addresses at which peers may try to reach the port: its own, and the one that the cloud saw.
    pub addresses: Vec<IpAddr>,
    /// Endpoints that an operator configured; used instead of `addresses`.
    pub endpoints: Vec<String>,
    /// Seconds since 1970 at which this key was first reported. Of two gateways with one key, the older keeps it.
    pub since: i64,
    /// The replica that holds the tunnel, for the gateway of the cloud.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replica: String,
    /// The site in the certificate of the session that reported it. Empty in records of older versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub site: String,
    /// The hash of that certificate's key: the tunnel ends with it. Empty in records of older versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// Seconds since 1970 at which that certificate ends, and the tunnel with it. 0 in records of older versions, and for the
    /// gateway of the cloud.
    #[serde(skip_serializing_if = "is_zero")]
    pub expires: i64,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A network of a site and the range that was allocated for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MappedRange {
    pub site: String,
    pub subnet: IpNet,
    #[serde(rename = "as")]
    pub seen_as: IpNet,
}

impl TunnelRecord {
    pub fn key(&self) -> Option<[u8; 32]> {
        super::parse_key(&self.public_key)
    }
}

impl Layer3Facts {
    /// Returns the range that was allocated for a network of a site. Of two communities, the first by name decides, for all.
    pub fn range_of(&self, site: &str, subnet: IpNet) -> Option<IpNet> {
        let all = self.ranges.values().flatten();
        all.into_iter().find(|range| range.site == site && range.subnet == subnet).map(|range| range.seen_as)
    }

    /// Returns every range that was allocated for a site.
    pub fn ranges_at<'a>(&'a self, site: &'a str) -> impl Iterator<Item = &'a MappedRange> {
        self.ranges.values().flatten().filter(move |range| range.site == site)
    }
}

impl ObjectSet {
    /// Returns the public key of a gateway: written by a user for a plain WireGuard peer, else the reported one. A gateway
    /// that is being deleted has none, nor has one that was moved to another site until it is enrolled there.
    pub fn tunnel_key(&self, gateway: &str) -> Option<[u8; 32]> {
        let object = self.gateway(gateway).filter(|object| !object.metadata.is_being_deleted())?;
        if object.is_plain_wireguard() {
            return super::parse_key(&object.public_key);
        }
        let record = self.layer3.tunnels.get(gateway)?;
        let is_enrolled_here = record.site.is_empty() || record.site == object.e_site_name;
        record.key().filter(|_| is_enrolled_here)
    }

    /// Returns the other gateway that has the same key and keeps it: the one whose record is older. A key that a user
    /// wrote into an EGateway is older than every reported one.
    pub fn tunnel_key_owner(&self, gateway: &str) -> Option<&str> {
        let key = self.tunnel_key(gateway)?;
        let own = self.key_age(gateway)?;
        let rivals = self.gateways_with_key(&key);
        let older = rivals.filter(|other| *other != gateway && self.tunnel_key(other) == Some(key));
        older
            .filter_map(|other| Some((self.key_age(other)?, other)))
            .filter(|(age, _)| *age < own)
            .min()
            .map(|(_, name)| name)
    }

    /// Returns another gateway that claims the same key and does not keep it.
    pub fn tunnel_key_duplicate(&self, gateway: &str) -> Option<&str> {
        let key = self.tunnel_key(gateway)?;
        self.gateways_with_key(&key).find(|other| *other != gateway && self.tunnel_key(other) == Some(key))
    }

    fn key_age(&self, gateway: &str) -> Option<(i64, &str)> {
        let object = self.gateway(gateway)?;
        let name = object.metadata.name.as_str();
        match object.is_plain_wireguard() {
            true => Some((i64::MIN, name)),
            false => Some((self.layer3.tunnels.get(gateway)?.since, name)),
        }
    }

    fn gateways_with_key<'a>(&'a self, key: &[u8; 32]) -> impl Iterator<Item = &'a str> + use<'a> {
        self.gateways_claiming(&super::show_key(key))
    }

    /// Returns the gateways that report or were given a key, as text. An empty key is claimed by none.
    pub fn gateways_claiming<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let (reported_key, plain_key) = (key.to_owned(), key.to_owned());
        let reported =
            self.layer3.tunnels.iter().filter(move |(_, record)| record.public_key == reported_key);
        let plain = self.plain_peers().filter(move |gateway| gateway.public_key == plain_key);
        reported.map(|(name, _)| name.as_str()).chain(plain.map(|gateway| gateway.metadata.name.as_str()))
    }
}
