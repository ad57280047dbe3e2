//! Decides which Kafka requests a client may send, and which responses are held for rewriting.
//!
//! Responses with broker addresses must be parsed: versions newer than those known here are not offered to
//! clients, and are refused if a client uses them nevertheless. Requests that are not listed here pass.

use std::ops::RangeInclusive;

/// A response that is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RewrittenApi {
    Metadata,
    FindCoordinator,
    DescribeCluster,
    ApiVersions,
}

/// The request that a held response answers; it determines how the response is parsed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PendingRequest {
    pub api: RewrittenApi,
    pub version: i16,
}

/// The treatment of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestHandling {
    Pass,
    /// Its response is held.
    Watch(PendingRequest),
    /// An ApiVersions request in a version that is not known here. A broker answers an unknown version in the
    /// oldest one, with the versions it supports: so the request is sent on with a version that no broker
    /// knows.
    AskForNoSuchVersion,
    /// Its response could not be parsed, or would carry addresses that must not leave the site.
    Refuse,
}

/// The newest version of ApiVersions that is known here.
const API_VERSIONS_MAX: i16 = 4;
/// A version that no broker knows.
pub const NO_SUCH_VERSION: i16 = i16::MAX;

mod key {
    pub const PRODUCE: i16 = 0;
    pub const FETCH: i16 = 1;
    pub const METADATA: i16 = 3;
    pub const FIND_COORDINATOR: i16 = 10;
    pub const SASL_HANDSHAKE: i16 = 17;
    pub const API_VERSIONS: i16 = 18;
    pub const DESCRIBE_QUORUM: i16 = 55;
    pub const DESCRIBE_CLUSTER: i16 = 60;
    pub const SHARE_FETCH: i16 = 78;
    pub const SHARE_ACKNOWLEDGE: i16 = 79;
}

/// Returns the versions of a request that may be used. None: all.
pub fn allowed(key: i16) -> Option<RangeInclusive<i16>> {
    match key {
        // From 10 and 16 on, errors name the new leader with its address (KIP-951), after any number of
        // records.
        key::PRODUCE => Some(0..=9),
        key::FETCH => Some(0..=15),
        key::METADATA => Some(0..=13),
        key::FIND_COORDINATOR => Some(0..=6),
        // Version 0 is followed by tokens that are not Kafka requests, and their number is unknown.
        key::SASL_HANDSHAKE => Some(1..=i16::MAX),
        key::API_VERSIONS => Some(0..=API_VERSIONS_MAX),
        // From 2 on it has the addresses of controllers.
        key::DESCRIBE_QUORUM => Some(0..=1),
        key::DESCRIBE_CLUSTER => Some(0..=2),
        // As KIP-951, in every version.
        key::SHARE_FETCH | key::SHARE_ACKNOWLEDGE => Some(RangeInclusive::new(0, -1)),
        _ => None,
    }
}

pub fn handling_of(key: i16, version: i16) -> RequestHandling {
    let is_allowed = allowed(key).is_none_or(|range| range.contains(&version));
    let api = match key {
        key::API_VERSIONS if !is_allowed => return RequestHandling::AskForNoSuchVersion,
        _ if !is_allowed => return RequestHandling::Refuse,
        key::METADATA => RewrittenApi::Metadata,
        key::FIND_COORDINATOR => RewrittenApi::FindCoordinator,
        key::DESCRIBE_CLUSTER => RewrittenApi::DescribeCluster,
        key::API_VERSIONS => RewrittenApi::ApiVersions,
        _ => return RequestHandling::Pass,
    };
    RequestHandling::Watch(PendingRequest { api, version })
}

/// Returns the versions of a request that clients are offered. None: the request is not offered.
pub fn offer(key: i16, min: i16, max: i16) -> Option<(i16, i16)> {
    let range = allowed(key).unwrap_or(0..=i16::MAX);
    let (min, max) = (min.max(*range.start()), max.min(*range.end()));
    (min <= max).then_some((min, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_watched_refused_or_none_of_our_business() {
        let watch = |api, version| RequestHandling::Watch(PendingRequest { api, version });
        for (key, version, expected) in [
            (3, 0, watch(RewrittenApi::Metadata, 0)),
            (3, 13, watch(RewrittenApi::Metadata, 13)),
            (3, 14, RequestHandling::Refuse),
            (3, -1, RequestHandling::Refuse),
            (10, 6, watch(RewrittenApi::FindCoordinator, 6)),
            (60, 2, watch(RewrittenApi::DescribeCluster, 2)),
            (18, 4, watch(RewrittenApi::ApiVersions, 4)),
            (18, 5, RequestHandling::AskForNoSuchVersion),
            (0, 9, RequestHandling::Pass),
            (0, 10, RequestHandling::Refuse),
            (1, 15, RequestHandling::Pass),
            (1, 16, RequestHandling::Refuse),
            (17, 0, RequestHandling::Refuse),
            (17, 1, RequestHandling::Pass),
            (78, 1, RequestHandling::Refuse),
            // Requests of future versions of Kafka.
            (999, 77, RequestHandling::Pass),
        ] {
            assert_eq!(handling_of(key, version), expected, "{key} {version}");
        }
    }

    #[test]
    fn what_is_offered_is_what_is_allowed() {
        for (key, min, max, expected) in [
            (3, 0, 99, Some((0, 13))),
            (3, 0, 5, Some((0, 5))),
            (0, 3, 13, Some((3, 9))),
            // A broker that supports only versions that cannot be parsed.
            (0, 10, 13, None),
            (17, 0, 1, Some((1, 1))),
            (78, 0, 2, None),
            (999, 0, 4, Some((0, 4))),
        ] {
            assert_eq!(offer(key, min, max), expected, "{key}");
            if let Some((min, max)) = expected {
                assert!((min..=max).all(|version| handling_of(key, version) != RequestHandling::Refuse));
            }
        }
    }
}
