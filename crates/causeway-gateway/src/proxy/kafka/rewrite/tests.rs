//! Responses in every version, encoded and decoded by an independent codec.

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, DescribeClusterResponse, FindCoordinatorResponse,
    MetadataResponse, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use proptest::prelude::*;

use super::*;

const NUMBER: i32 = 4711;

fn frame(key: ApiKey, version: i16, body: &impl Encodable) -> Bytes {
    let mut out = BytesMut::from(&[0; 4][..]);
    let header = ResponseHeader::default().with_correlation_id(NUMBER);
    header.encode(&mut out, key.response_header_version(version)).unwrap();
    body.encode(&mut out, version).unwrap();
    put_length(&mut out, 0);
    out.freeze()
}

fn body<T: Decodable>(key: ApiKey, version: i16, frame: &[u8]) -> T {
    let mut bytes = Bytes::copy_from_slice(frame);
    let length = bytes.split_to(4);
    assert_eq!(i32::from_be_bytes(length[..].try_into().unwrap()) as usize, bytes.len());
    let header = ResponseHeader::decode(&mut bytes, key.response_header_version(version)).unwrap();
    assert_eq!(header.correlation_id, NUMBER);
    let body = T::decode(&mut bytes, version).unwrap();
    assert!(bytes.is_empty());
    body
}

fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// Brokers whose names begin with `kafka` are at the presence; the rest is unreachable.
fn changed(asked: PendingRequest, frame: &Bytes) -> Bytes {
    let reading = read(asked, frame).unwrap().unwrap();
    let addresses: Vec<Option<SocketAddr>> =
        reading.named().iter().map(|named| seen(&named.host, named.port)).collect();
    reading.write(&addresses).concat().into()
}

fn seen(host: &str, port: i32) -> Option<SocketAddr> {
    host.starts_with("kafka").then(|| SocketAddr::new("198.18.0.9".parse().unwrap(), port as u16 + 1))
}

fn metadata_of(version: i16, brokers: &[(i32, String, u16, bool)]) -> MetadataResponse {
    let brokers = brokers.iter().map(|(node, host, port, has_rack)| {
        let broker = MetadataResponseBroker::default()
            .with_node_id(BrokerId(*node))
            .with_host(text(host.as_str()))
            .with_port((*port).into());
        let broker = if version >= 1 { broker.with_rack(has_rack.then(|| text("rack"))) } else { broker };
        // Fields of later versions stay where they are.
        if version >= 9 { broker.with_unknown_tagged_field(9, Bytes::from_static(b"later")) } else { broker }
    });
    let partitions = (0..5).map(|at| {
        MetadataResponsePartition::default()
            .with_partition_index(at)
            .with_leader_id(BrokerId(at))
            .with_replica_nodes(vec![BrokerId(1), BrokerId(2)])
    });
    let topic = MetadataResponseTopic::default()
        .with_name(Some(TopicName(text("orders"))))
        .with_partitions(partitions.collect());
    let response = MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_controller_id(BrokerId(if version >= 1 { 2 } else { -1 }))
        .with_topics(vec![topic]);
    let response = if version >= 2 { response.with_cluster_id(Some(text("cluster"))) } else { response };
    if version >= 3 { response.with_throttle_time_ms(7) } else { response }
}

fn check_metadata(version: i16, brokers: &[(i32, String, u16, bool)]) {
    let sent = metadata_of(version, brokers);
    let asked = PendingRequest { api: RewrittenApi::Metadata, version };
    let got: MetadataResponse =
        body(ApiKey::Metadata, version, &changed(asked, &frame(ApiKey::Metadata, version, &sent)));
    let mut expected =
        body::<MetadataResponse>(ApiKey::Metadata, version, &frame(ApiKey::Metadata, version, &sent));
    expected.brokers.retain(|broker| broker.host.starts_with("kafka"));
    for broker in &mut expected.brokers {
        broker.host = text("198.18.0.9");
        broker.port += 1;
    }
    assert_eq!(got, expected, "version {version}");
}

#[test]
fn metadata_names_brokers_at_the_presence_in_every_version() {
    let broker = |node, host: &str, has_rack| (node, host.to_owned(), 9092, has_rack);
    for version in 0..=13 {
        check_metadata(version, &[]);
        check_metadata(version, &[broker(0, "kafka-0.local", true), broker(1, "kafka-1.local", false)]);
        // A broker that is no endpoint is left out, at any position.
        check_metadata(
            version,
            &[broker(0, "other", true), broker(1, "kafka-1.local", true), broker(2, "other", false)],
        );
    }
}

#[test]
fn a_cluster_is_described_with_brokers_at_the_presence() {
    for version in 0..=2 {
        let broker = |node, host: &str| {
            let broker =
                DescribeClusterBroker::default().with_broker_id(BrokerId(node)).with_host(text(host));
            broker.with_port(9092).with_rack(Some(text("rack"))).with_is_fenced(version >= 2 && node == 0)
        };
        let sent = DescribeClusterResponse::default()
            .with_cluster_id(text("cluster"))
            .with_controller_id(BrokerId(1))
            .with_error_message(Some(text("words")))
            .with_brokers(vec![broker(0, "kafka-0"), broker(1, "other"), broker(2, "kafka-2")]);
        let asked = PendingRequest { api: RewrittenApi::DescribeCluster, version };
        let frame = frame(ApiKey::DescribeCluster, version, &sent);
        let got: DescribeClusterResponse = body(ApiKey::DescribeCluster, version, &changed(asked, &frame));
        let mut expected = sent;
        expected.brokers = [0, 2].map(|node| broker(node, "198.18.0.9").with_port(9093)).to_vec();
        assert_eq!(got, expected, "version {version}");
    }
}

#[test]
fn a_coordinator_is_at_the_presence_or_not_available() {
    for version in 0..=3 {
        let found = |host: &str, port, node, error| {
            let response = FindCoordinatorResponse::default()
                .with_host(text(host))
                .with_port(port)
                .with_node_id(BrokerId(node))
                .with_error_code(error);
            let message = (version >= 1 && error != 15).then(|| text("NONE"));
            if version >= 1 { response.with_error_message(message) } else { response }
        };
        let check = |sent: FindCoordinatorResponse, expected: FindCoordinatorResponse| {
            let asked = PendingRequest { api: RewrittenApi::FindCoordinator, version };
            let frame = frame(ApiKey::FindCoordinator, version, &sent);
            let got: FindCoordinatorResponse =
                body(ApiKey::FindCoordinator, version, &changed(asked, &frame));
            assert_eq!(got, expected, "version {version}");
        };
        check(found("kafka-1", 9092, 1, 0), found("198.18.0.9", 9093, 1, 0));
        // The broker has no coordinator itself: its response stays as it is.
        check(found("", -1, -1, 15), found("", -1, -1, 15));
        let mut none = found("", -1, -1, 0);
        none.error_code = 15;
        check(found("other", 9092, 1, 0), none);
    }
}

#[test]
fn many_coordinators_are_told_apart() {
    for version in 4..=6 {
        let one = |key: &str, host: &str, port, node, error| {
            Coordinator::default()
                .with_key(text(key))
                .with_host(text(host))
                .with_port(port)
                .with_node_id(BrokerId(node))
                .with_error_code(error)
                .with_error_message(None)
        };
        let sent = FindCoordinatorResponse::default().with_throttle_time_ms(3).with_coordinators(vec![
            one("a", "kafka-1", 9092, 1, 0),
            one("b", "other", 9092, 2, 0),
            one("c", "", -1, -1, 15),
            one("d", "kafka-3", 9094, 3, 0),
        ]);
        let asked = PendingRequest { api: RewrittenApi::FindCoordinator, version };
        let frame = frame(ApiKey::FindCoordinator, version, &sent);
        let got: FindCoordinatorResponse = body(ApiKey::FindCoordinator, version, &changed(asked, &frame));
        let expected = sent.with_coordinators(vec![
            one("a", "198.18.0.9", 9093, 1, 0),
            one("b", "", -1, -1, 15),
            one("c", "", -1, -1, 15),
            one("d", "198.18.0.9", 9095, 3, 0),
        ]);
        assert_eq!(got, expected, "version {version}");
    }
}

#[test]
fn only_versions_that_can_be_read_are_offered() {
    for version in 0..=4 {
        let api = |key, min, max| {
            ApiVersion::default().with_api_key(key).with_min_version(min).with_max_version(max)
        };
        let sent = ApiVersionsResponse::default().with_api_keys(vec![
            api(0, 3, 13),
            api(1, 4, 18),
            api(3, 0, 99),
            api(17, 0, 1),
            api(18, 0, 9),
            api(78, 0, 1),
            api(999, 0, 9),
        ]);
        let features = |sent: ApiVersionsResponse| {
            let feature = FinalizedFeatureKey::default().with_name(text("transaction.version"));
            sent.with_finalized_features(vec![feature]).with_finalized_features_epoch(5)
        };
        let supported = SupportedFeatureKey::default().with_name(text("group.version")).with_max_version(1);
        let sent = if version >= 1 { sent.with_throttle_time_ms(9) } else { sent };
        let sent = if version >= 3 { sent.with_supported_features(vec![supported]) } else { sent };
        let full = if version >= 3 { features(sent.clone()) } else { sent.clone() };
        let expected = sent.with_api_keys(vec![
            api(0, 3, 9),
            api(1, 4, 15),
            api(3, 0, 13),
            api(17, 1, 1),
            api(18, 0, 4),
            api(999, 0, 9),
        ]);
        let limited = limit(version, &frame(ApiKey::ApiVersions, version, &full)).unwrap();
        assert_eq!(
            body::<ApiVersionsResponse>(ApiKey::ApiVersions, version, &limited),
            expected,
            "{version}"
        );
    }
}

#[test]
fn a_broker_that_does_not_know_the_question_answers_in_the_oldest_form() {
    let api = |max| ApiVersion::default().with_api_key(3).with_min_version(0).with_max_version(max);
    let sent =
        ApiVersionsResponse::default().with_error_code(UNSUPPORTED_VERSION).with_api_keys(vec![api(20)]);
    let limited = limit(4, &frame(ApiKey::ApiVersions, 0, &sent)).unwrap();
    let got: ApiVersionsResponse = body(ApiKey::ApiVersions, 0, &limited);
    assert_eq!(got, sent.clone().with_api_keys(vec![api(13)]));
    // As librdkafka 2.0 answers, with a count of one byte.
    let mixed = b"\0\0\0\x11\0\0\x12\x67\0\x23\x01\0\x12\0\0\0\x02\0\0\0\0";
    let limited = limit(3, &Bytes::from_static(mixed)).unwrap();
    assert_eq!(body::<ApiVersionsResponse>(ApiKey::ApiVersions, 0, &limited), sent.with_api_keys(vec![]));
}

#[test]
fn an_answer_that_promises_too_much_is_unreadable() {
    // A count of two billion brokers.
    let promise = [&[0; 8][..], &i32::MAX.to_be_bytes(), &[0; 100]].concat();
    let asked = PendingRequest { api: RewrittenApi::Metadata, version: 0 };
    assert!(read(asked, &Bytes::from(promise)).is_err());
}

/// Captured from librdkafka 2.0 (its mock cluster of three brokers), requested in version 2.
#[test]
fn a_frame_from_the_wire() {
    let captured = include_bytes!("metadata.bin");
    let asked = PendingRequest { api: RewrittenApi::Metadata, version: 2 };
    let frame = Bytes::from_static(captured);
    let reading = read(asked, &frame).unwrap().unwrap();
    let hosts: Vec<_> = reading.named().iter().map(|named| (named.host.as_str(), named.port > 0)).collect();
    assert_eq!(hosts, [("127.0.0.1", true); 3]);
    let end = reading.end;
    let written = reading.write(&[Some("198.18.0.7:9093".parse().unwrap()), None, None]);
    assert_eq!(written[1], frame[end..]);
    let again = read(asked, &Bytes::from(written.concat())).unwrap().unwrap();
    assert_eq!((again.named().len(), again.named()[0].host.as_str()), (1, "198.18.0.7"));
}

proptest! {
    #[test]
    fn metadata_of_any_cluster(
        version in 0_i16..=13,
        brokers in prop::collection::vec((any::<i32>(), "(kafka|other)[a-z.0-9-]{0,20}", any::<u16>(), any::<bool>()), 0..20),
    ) {
        let brokers: Vec<_> = brokers.into_iter().map(|(node, host, port, rack)| (node, host, port.min(60_000), rack)).collect();
        check_metadata(version, &brokers);
    }

    #[test]
    fn nothing_makes_it_panic(
        api in prop::sample::select(vec![RewrittenApi::Metadata, RewrittenApi::FindCoordinator, RewrittenApi::DescribeCluster, RewrittenApi::ApiVersions]),
        version in 0_i16..=13,
        bytes in prop::collection::vec(any::<u8>(), 8..300),
        reached in any::<bool>(),
    ) {
        let frame = Bytes::from(bytes);
        if let Ok(Some(reading)) = read(PendingRequest { api, version }, &frame) {
            let address = reached.then(|| "[fd00::1]:9092".parse().unwrap());
            let addresses = vec![address; reading.named().len()];
            let written = reading.write(&addresses).concat();
            prop_assert_eq!(i32::from_be_bytes(written[..4].try_into().unwrap()) as usize, written.len() - 4);
        }
        let _ = limit(version, &frame);
    }
}
