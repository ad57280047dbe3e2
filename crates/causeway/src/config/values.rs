//! Values with a form of their own: endpoints and store specifications.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// HOST:PORT as edges are to dial it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(String);

impl Endpoint {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host without brackets: a name for the server certificate.
    pub fn host(&self) -> &str {
        let host = self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong = |why: &str| {
            format!(
                "`{text}` is no endpoint ({why}): write HOST:PORT, as in `cloud.example.org:7444` or `[2001:db8::1]:7444`"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
        if !port.parse::<u16>().is_ok_and(|port| port != 0) {
            return Err(wrong("the port must be 1 to 65535"));
        }
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let good = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.len() <= 253
                    && host
                        .chars()
                        .all(|character| character.is_ascii_alphanumeric() || "-._".contains(character))
            }
        };
        if good { Ok(Endpoint(text.to_owned())) } else { Err(wrong("the host is not a name or address")) }
    }
}

/// Which store keeps the objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Store {
    /// store.db inside the data dir.
    Sqlite,
    Etcd {
        endpoints: Vec<String>,
    },
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Store, String> {
        if text == "sqlite" {
            return Ok(Store::Sqlite);
        }
        let Some(list) = text.strip_prefix("etcd=") else {
            return Err(format!("store `{text}` is unknown: use `sqlite` or `etcd=http://HOST:2379,...`"));
        };
        let endpoints: Vec<String> = list.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
        for endpoint in &endpoints {
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            if rest.is_none_or(str::is_empty) {
                return Err(format!(
                    "etcd endpoint `{endpoint}` must begin with http:// or https:// and name a host"
                ));
            }
        }
        Ok(Store::Etcd { endpoints })
    }
}

impl fmt::Display for Store {
    /// Without passwords that may stand in the addresses: this goes into logs and dumps.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Sqlite => write!(out, "sqlite"),
            Store::Etcd { endpoints } => {
                let shown: Vec<String> =
                    endpoints.iter().map(|endpoint| without_password(endpoint)).collect();
                write!(out, "etcd={}", shown.join(","))
            }
        }
    }
}

fn without_password(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://***@{host}"),
            None => endpoint.to_owned(),
        },
        None => endpoint.to_owned(),
    }
}

macro_rules! text_form {
    ($($kind:ident),+) => {
        $(impl TryFrom<String> for $kind {
            type Error = String;

            fn try_from(text: String) -> Result<$kind, String> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> String {
                value.to_string()
            }
        })+
    };
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

text_form!(Endpoint, Store);
