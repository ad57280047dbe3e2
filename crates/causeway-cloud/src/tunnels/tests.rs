//! Records of tunnels and ranges, as rows.

use causeway_api::layer3::show_key;
use causeway_channel::wire::control::TunnelReport;

use super::reports::{NextRecord, ReportRates, next_record, record_of};
use super::*;

fn report(key: &[u8], port: u32, addresses: &[&[u8]]) -> TunnelReport {
    let addresses = addresses.iter().map(|bytes| bytes.to_vec().into()).collect();
    TunnelReport { public_key: key.to_vec().into(), port, aes: true, addresses }
}

#[test]
fn a_report_is_bounded_and_filtered() {
    let seen = "192.0.2.7".parse().unwrap();
    let record = |report: &TunnelReport| record_of(report, seen);
    assert_eq!(record(&report(&[7; 31], 7446, &[])), None, "a short key");
    assert_eq!(record(&report(&[7; 32], 0, &[])), None);
    assert_eq!(record(&report(&[7; 32], 70_000, &[])), None);
    let odd: [&[u8]; 8] = [
        &[127, 0, 0, 1],
        &[0, 0, 0, 0],
        &[224, 0, 0, 1],
        &[169, 254, 1, 1],
        &[255, 255, 255, 255],
        &[1, 2, 3],
        &[192, 0, 2, 7],
        &[10, 0, 0, 1],
    ];
    let found = record(&report(&[7; 32], 7446, &odd)).unwrap();
    assert_eq!(found.public_key, show_key(&[7; 32]));
    assert_eq!(found.addresses, [seen, "10.0.0.1".parse().unwrap()]);
    let many: Vec<[u8; 4]> = (0..100).map(|last| [10, 0, 1, last]).collect();
    let many: Vec<&[u8]> = many.iter().map(<[u8; 4]>::as_slice).collect();
    assert_eq!(record(&report(&[7; 32], 7446, &many)).unwrap().addresses.len(), 8);
}

#[test]
fn a_record_is_written_when_something_changed_and_keeps_its_age_with_its_key() {
    let record = |key: u8, port, since| TunnelRecord {
        public_key: show_key(&[key; 32]),
        port,
        since,
        ..TunnelRecord::default()
    };
    let next = |known: Option<&TunnelRecord>, report| next_record(known, report, 50);
    assert_eq!(next(None, Some(record(1, 1, 0))), NextRecord::Put(record(1, 1, 50)));
    assert_eq!(next(Some(&record(1, 1, 9)), Some(record(1, 1, 0))), NextRecord::Same);
    assert_eq!(next(Some(&record(1, 1, 9)), Some(record(1, 2, 0))), NextRecord::Put(record(1, 2, 9)));
    assert_eq!(next(Some(&record(1, 1, 9)), Some(record(2, 1, 0))), NextRecord::Put(record(2, 1, 50)));
    assert_eq!(next(Some(&record(1, 1, 9)), None), NextRecord::Delete);
    assert_eq!(next(None, None), NextRecord::Same);
}

#[test]
fn a_record_enters_and_leaves_the_picture() {
    let mut objects = ObjectSet::default();
    let value = br#"{"publicKey":"k","port":7446}"#;
    let change = take_record(&mut objects, "tunnels/gw", Some(value));
    assert_eq!(change, Some(Layer3Change::Tunnel { gateway: "gw".into(), keys: vec!["k".into()] }));
    assert_eq!(take_record(&mut objects, "tunnels/gw", Some(value)), None, "the same again");
    assert!(take_record(&mut objects, "tunnels/gw", None).is_some());
    assert!(objects.layer3.tunnels.is_empty());
    let ranges = br#"[{"site":"a","subnet":"10.0.0.0/24","as":"100.64.0.0/24"}]"#;
    let change = take_record(&mut objects, "mappedranges/all", Some(ranges));
    assert_eq!(change, Some(Layer3Change::Mapped { community: "all".into(), sites: vec!["a".into()] }));
    assert_eq!(objects.layer3.ranges["all"].len(), 1);
    assert!(
        take_record(&mut objects, "mappedranges/all", Some(b"?")).is_some(),
        "what cannot be read maps nothing"
    );
    assert!(objects.layer3.ranges.is_empty());
    assert_eq!(take_record(&mut objects, "esites/a", Some(b"{}")), None);
}

#[test]
fn the_tunnel_of_one_gateway_is_written_every_five_seconds_at_most() {
    let (mut rates, begin) = (ReportRates::default(), tokio::time::Instant::now());
    let written = (0..600).filter(|tenths| {
        let now = begin + std::time::Duration::from_millis(tenths * 100);
        let is_due = rates.is_due("g", now);
        if is_due {
            rates.note("g".into(), now);
        }
        is_due
    });
    assert_eq!(written.count(), 12, "a gateway that reports another tunnel ten times a second for a minute");
    assert!(rates.is_due("h", begin), "another gateway is written at once");
}
