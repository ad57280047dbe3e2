//! ESite: a network domain.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, CIDRS_MAX};
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus};
use crate::selector::LabelSelector;

/// ESite is a network domain: a factory, a shop, a machine room, or the central cloud, which is the site "cloud".
/// Address plans of different sites may overlap.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ESite {
    pub metadata: ObjectMeta,

    /// Networks inside the site, as CIDRs, IPv4 and IPv6. The site's gateway answers recursive DNS queries of
    /// hosts in these networks, and layer 3 routes them. Default: none. Example: ["10.0.0.0/24",
    /// "fd00:10::/64"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = CIDRS_MAX))]
    pub subnets: Vec<String>,

    /// Networks of the site that other members of its ECommunities see under other addresses, 1:1. The gateway of the site
    /// translates; host bits are kept. Default: none. Example: [{"subnet": "10.0.0.0/24", "as": "100.64.7.0/24"}].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = CIDRS_MAX))]
    pub mapped_subnets: Vec<MappedSubnet>,

    /// Parts of the Kubernetes API that gateways of the site keep a copy of from their first connection on, so that the site is
    /// ready for a start without the cloud. Default: none; resources that clients of the site read are held anyway.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = CACHE_MAX))]
    pub cache: Vec<CachedResource>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// A network and the one of equal size that other sites see in its place.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["subnet", "as"]))]
pub struct MappedSubnet {
    /// Network inside the site. Required. Example: 10.0.0.0/24.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subnet: String,
    /// Network that other sites see, of the same prefix length. Required. Example: 100.64.7.0/24.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub seen_as: String,
}

/// A part of a resource of the Kubernetes API.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CachedResource {
    /// Version and plural, with the group in front where there is one. Required. Example: apps/v1/deployments.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Default: all namespaces. Example: shop.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Label selector. Default: all objects. Example: tier=edge.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// Field selector. Default: all objects. Example: spec.nodeName=node-1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_selector: String,
}

// More than the resources of any cluster that a site needs.
const CACHE_MAX: usize = 256;

impl ESite {
    /// Returns the networks of the site. Unreadable ones are left out: `validate` has refused them before they were stored.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.subnets.iter().filter_map(|subnet| subnet.parse().ok())
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::set(errors, "subnets", &self.subnets, CIDRS_MAX, check::cidr);
        check::count(errors, "mappedSubnets", self.mapped_subnets.len(), CIDRS_MAX);
        let mapped: Vec<&MappedSubnet> = self.mapped_subnets.iter().take(CIDRS_MAX).collect();
        for (index, mapping) in mapped.iter().enumerate() {
            mapping.check_fields(errors, index);
            let mut before = mapped[..index].iter().filter_map(|other| Some((other.networks()?, *other)));
            let Some((subnet, seen_as)) = mapping.networks() else { continue };
            if let Some((_, other)) =
                before.find(|((one, two), _)| overlap(*one, subnet) || overlap(*two, seen_as))
            {
                let why = format!(
                    "it overlaps the mapping of {} as {}: an address has one other address",
                    other.subnet, other.seen_as
                );
                errors.push(FieldError::invalid(
                    format!("mappedSubnets[{index}]"),
                    mapping.subnet.as_str(),
                    why,
                ));
            }
        }
        check::count(errors, "cache", self.cache.len(), CACHE_MAX);
        for (index, cached) in self.cache.iter().take(CACHE_MAX).enumerate() {
            let path = format!("cache[{index}].resource");
            match cached.resource.as_str() {
                "" => {
                    errors.push(FieldError::required(path, "version and plural, for example v1/configmaps"))
                }
                resource if !is_resource(resource) => {
                    let allowed = "write VERSION/PLURAL or GROUP/VERSION/PLURAL, for example v1/configmaps or apps/v1/deployments";
                    errors.push(FieldError::invalid(path, resource, allowed));
                }
                _ => {}
            }
            let path = format!("cache[{index}].labelSelector");
            if let Err(error) = LabelSelector::parse(&cached.label_selector) {
                errors.push(FieldError::invalid(path, cached.label_selector.as_str(), error.message));
            }
            if !cached.namespace.is_empty() && !is_segment(&cached.namespace) {
                let allowed = "write the name of a namespace";
                errors.push(FieldError::invalid(
                    format!("cache[{index}].namespace"),
                    cached.namespace.as_str(),
                    allowed,
                ));
            }
        }
    }
}

impl MappedSubnet {
    /// Returns the network and the one that other sites see. None: not validated.
    pub fn networks(&self) -> Option<(IpNet, IpNet)> {
        let (subnet, seen_as): (IpNet, IpNet) = (self.subnet.parse().ok()?, self.seen_as.parse().ok()?);
        let is_alike = subnet.max_prefix_len() == seen_as.max_prefix_len();
        (is_alike && subnet.prefix_len() == seen_as.prefix_len()).then_some((subnet, seen_as))
    }

    fn check_fields(&self, errors: &mut FieldErrors, index: usize) {
        let before = errors.len();
        for (name, value) in [("subnet", &self.subnet), ("as", &self.seen_as)] {
            let path = format!("mappedSubnets[{index}].{name}");
            match value.as_str() {
                "" => errors.push(FieldError::required(path, "a network and its prefix length")),
                value => check::cidr(errors, &path, value),
            }
        }
        if errors.len() == before && self.networks().is_none() {
            let why = format!("it must have the address family and the prefix length of {}", self.subnet);
            errors.push(FieldError::invalid(
                format!("mappedSubnets[{index}].as"),
                self.seen_as.as_str(),
                why,
            ));
        }
    }
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

fn is_resource(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    matches!(parts.len(), 2 | 3) && parts.iter().all(|part| is_segment(part))
}

fn is_segment(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('.')
}
