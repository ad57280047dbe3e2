//! Which objects a client wants: by labels and by fields.
//!
//! A selector is parsed once per request. `Facets` is the little of an object that selectors look at, so a watch hub
//! evaluates a thousand selectors on an event without decoding it again.

mod fields;
mod labels;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

pub use fields::{FieldSelector, selectable_fields};
pub use labels::{LabelSelector, Requirement};

use crate::kinds::Kind;
use crate::object::Object;

/// Both selectors of a request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selector {
    pub fn parse(kind: Kind, labels: &str, fields: &str) -> Result<Selector, SelectorError> {
        Ok(Selector { labels: LabelSelector::parse(labels)?, fields: FieldSelector::parse(kind, fields)? })
    }

    /// Does it select everything?
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, facets: &Facets<'_>) -> bool {
        self.labels.matches(facets) && self.fields.matches(facets)
    }

    pub fn matches_object(&self, object: &Object) -> bool {
        self.is_empty() || self.matches(&Facets::of(object))
    }
}

/// A selector that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectorError {
    /// What is wrong, what is allowed, and where.
    pub message: String,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SelectorError {}

/// What selectors look at: labels, name, and the fields that refer to other objects.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facets<'a> {
    #[serde(borrow)]
    metadata: MetadataFacets<'a>,
    #[serde(borrow)]
    e_site_name: Text<'a>,
    e_service_name: Text<'a>,
    virtual_ip: Text<'a>,
    e_sites: Vec<Text<'a>>,
    e_policys: Vec<Text<'a>>,
    allowed_servers: Vec<Text<'a>>,
    allowed_sites: Vec<Text<'a>>,
    members: Vec<Text<'a>>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(default)]
struct MetadataFacets<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    labels: BTreeMap<Text<'a>, Text<'a>>,
}

/// Text that stays in the stored bytes unless it had to be unescaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::borrow::Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'a> Facets<'a> {
    /// Reads them from the stored form; parses once, copies only what is escaped.
    pub fn from_stored(stored: &'a [u8]) -> Result<Facets<'a>, serde_json::Error> {
        serde_json::from_slice(stored)
    }

    pub fn of(object: &'a Object) -> Facets<'a> {
        let mut facets = match object {
            Object::ESite(_) => Facets::default(),
            Object::EGateway(gateway) => {
                Facets { e_site_name: text(&gateway.e_site_name), ..Facets::default() }
            }
            Object::EService(service) => {
                Facets { e_site_name: text(&service.e_site_name), ..Facets::default() }
            }
            Object::EServer(server) => Facets {
                e_site_name: text(&server.e_site_name),
                e_policys: texts(&server.e_policys),
                ..Facets::default()
            },
            Object::EPolicy(policy) => Facets {
                allowed_servers: texts(&policy.allowed_servers),
                allowed_sites: texts(&policy.allowed_sites),
                ..Facets::default()
            },
            Object::ServiceExpose(expose) => Facets {
                e_service_name: text(&expose.e_service_name),
                e_sites: texts(&expose.e_sites),
                e_policys: texts(&expose.e_policys),
                ..Facets::default()
            },
            Object::VirtualPresence(presence) => Facets {
                e_service_name: text(&presence.e_service_name),
                e_site_name: text(&presence.e_site_name),
                virtual_ip: text(&presence.virtual_ip),
                ..Facets::default()
            },
            Object::ECommunity(community) => {
                Facets { members: texts(&community.members), ..Facets::default() }
            }
        };
        let metadata = object.metadata();
        facets.metadata.name = text(&metadata.name);
        facets.metadata.labels =
            metadata.labels.iter().map(|(key, value)| (text(key), text(value))).collect();
        facets
    }

    pub fn name(&self) -> &str {
        &self.metadata.name.0
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(|value| value.0.as_ref())
    }

    /// The values of a field: one for a plain field, all entries for a list.
    fn field(&self, field: &str) -> &[Text<'a>] {
        use std::slice::from_ref;
        match field {
            "metadata.name" => from_ref(&self.metadata.name),
            "eSiteName" => from_ref(&self.e_site_name),
            "eServiceName" => from_ref(&self.e_service_name),
            "virtualIp" => from_ref(&self.virtual_ip),
            "eSites" => &self.e_sites,
            "ePolicys" => &self.e_policys,
            "allowedServers" => &self.allowed_servers,
            "allowedSites" => &self.allowed_sites,
            "members" => &self.members,
            _ => &[],
        }
    }
}

fn text(text: &str) -> Text<'_> {
    Text(Cow::Borrowed(text))
}

fn texts(list: &[String]) -> Vec<Text<'_>> {
    list.iter().map(|item| text(item)).collect()
}

#[cfg(test)]
mod tests;
