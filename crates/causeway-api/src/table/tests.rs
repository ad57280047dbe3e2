//! Rows as they are printed.

use super::*;
use crate::{ESite, ObjectMeta, meta::set_condition};

const NOW: i64 = 1_800_000_000;

#[test]
fn every_kind_has_a_cell_for_every_column_of_the_announced_type() {
    for kind in Kind::ALL {
        let cells = cells(&Object::empty(kind), Time::from_second(NOW), None);
        let columns = columns(kind);
        assert_eq!(cells.len(), columns.len(), "{kind}");
        for (cell, column) in cells.iter().zip(columns) {
            assert_eq!(cell.is_string(), column.cell == "string", "{kind} {}", column.name);
        }
        assert_eq!(columns[0].name, "Name");
    }
}

#[test]
fn a_gateway_shows_its_stats() {
    let gateway = EGateway {
        metadata: ObjectMeta {
            creation_timestamp: Some(Time::from_second(NOW - 3600)),
            ..ObjectMeta::named("gw")
        },
        ip: "10.0.0.1".into(),
        e_site_name: "berlin".into(),
        ..EGateway::default()
    };
    let stats = GatewayStats {
        connected: true,
        transport: Some("quic".into()),
        rtt_ms: Some(12.4),
        ..GatewayStats::default()
    };
    let row = |stats| {
        let cells = cells(&gateway.clone().into(), Time::from_second(NOW), stats);
        cells[..7].iter().map(|cell| cell.as_str().unwrap().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(Some(&stats)), "gw berlin 10.0.0.1 True quic 12ms 60m");
    assert_eq!(row(None), "gw berlin 10.0.0.1 False <none> <none> 60m");
}

#[test]
fn the_version_of_a_gateway_is_that_of_its_session_or_of_its_last_one() {
    let place = columns(Kind::EGateway).iter().position(|column| column.name == "Version").unwrap();
    let version = |live: Option<&str>, stored: &str| {
        let mut gateway = EGateway::default();
        gateway.status.software = stored.into();
        let stats = live.map(|live| GatewayStats { software: Some(live.into()), ..GatewayStats::default() });
        cells(&gateway.into(), Time::from_second(NOW), stats.as_ref())[place].clone()
    };
    assert_eq!(version(Some("causeway 0.2.0"), "causeway 0.1.0"), "0.2.0");
    assert_eq!(version(None, "causeway 0.1.0"), "0.1.0");
    assert_eq!(version(Some(""), "causeway 0.1.0"), "0.1.0");
    assert_eq!(version(None, "another 7"), "another 7");
    assert_eq!(version(None, ""), "<none>");
}

#[test]
fn readiness_comes_from_the_condition() {
    let mut site = ESite { metadata: ObjectMeta::named("a"), ..ESite::default() };
    let row = |site: &ESite| cells(&site.clone().into(), Time::from_second(NOW), None);
    assert_eq!(row(&site), ["a", "<none>", "Unknown", "<unknown>", "<none>", "<none>"]);
    let now = Time::from_second(NOW);
    set_condition(&mut site.status.conditions, "Ready", ConditionStatus::False, "GatewayMissing", "", now, 1);
    assert_eq!(row(&site), ["a", "<none>", "False", "<unknown>", "<none>", "GatewayMissing"]);
}
