//! Audit records of flows: one when a flow is refused, one when it ends.

use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime};

use causeway_netmap::{NetmapView, ServiceName, TunnelPeerEntry};

use crate::audit::{AuditDecision, AuditRecord, ConnectionEnd, timestamp};
use crate::tun::admission::{FlowRefusal, FlowStart};
use crate::tun::flow::{Flow, FlowEnd};
use crate::tun::packet;
use crate::tun::translate::Direction;

/// Returns the record of a flow that ended. Bytes are counted from the host that began.
pub fn of_end(view: &NetmapView, flow: &Flow, end: FlowEnd, now: Instant) -> AuditRecord {
    let (sent, received) = match flow.start.direction {
        Direction::Outbound => (flow.outbound, flow.inbound),
        Direction::Inbound => (flow.inbound, flow.outbound),
    };
    let client_port = match flow.start.direction {
        Direction::Outbound => flow.key.local_port,
        Direction::Inbound => flow.key.remote_port,
    };
    AuditRecord {
        subject: flow.right.subject.as_ref().map(ToString::to_string),
        decision: AuditDecision::Allow,
        rule: Some(flow.right.rule.to_string()),
        sent_bytes: sent.bytes,
        received_bytes: received.bytes,
        packets: Some(sent.packets + received.packets),
        duration_ms: now.duration_since(flow.begun).as_millis() as u64,
        end: match end {
            FlowEnd::Done => ConnectionEnd::Done,
            FlowEnd::Reset => ConnectionEnd::ClientReset,
            FlowEnd::Idle => ConnectionEnd::Idle,
            FlowEnd::Revoked => ConnectionEnd::Revoked,
            FlowEnd::Stopped => ConnectionEnd::Stopped,
        },
        ..blank(
            view,
            &flow.start,
            client_port,
            flow.right.site.to_string(),
            flow.began,
            flow.service.as_ref().map(|flow| &flow.service),
        )
    }
}

/// Returns the record of a flow that was refused.
pub fn of_refusal(
    view: &NetmapView,
    start: &FlowStart,
    client_port: u16,
    peer: &TunnelPeerEntry,
    refusal: FlowRefusal,
    began: SystemTime,
    service: Option<&ServiceName>,
) -> AuditRecord {
    let (site, subject) = match start.direction {
        Direction::Outbound => {
            (view.gateway.as_ref().map(|gateway| gateway.site.to_string()), view.subject_at(start.local))
        }
        Direction::Inbound => (Some(peer.site.to_string()), view.remote_subject_at(start.remote)),
    };
    AuditRecord {
        subject: subject.map(|subject| subject.server.to_string()),
        reason: Some(refusal.to_string()),
        cause: refusal.word(),
        packets: Some(1),
        ..blank(view, start, client_port, site.unwrap_or_default(), began, service)
    }
}

fn blank(
    view: &NetmapView,
    start: &FlowStart,
    client_port: u16,
    site: String,
    began: SystemTime,
    service: Option<&ServiceName>,
) -> AuditRecord {
    let (client, target) = match start.direction {
        Direction::Outbound => (start.local, start.remote),
        Direction::Inbound => (start.remote, start.local),
    };
    AuditRecord {
        time: timestamp(began),
        gateway: view.gateway.as_ref().map(|gateway| gateway.name.to_string()).unwrap_or_default(),
        site,
        subject: None,
        claimed_subject: None,
        client: Some(SocketAddr::new(client, client_port).to_string()),
        service: service.map_or_else(|| service_word(target, start), ToString::to_string),
        protocol: protocol_word(start.protocol),
        decision: AuditDecision::Deny,
        rule: None,
        reason: None,
        cause: "",
        method: None,
        path: None,
        status: None,
        client_id: None,
        sent_bytes: 0,
        received_bytes: 0,
        packets: None,
        duration_ms: 0,
        end: ConnectionEnd::Refused,
        count: None,
        first_time: None,
        last_time: None,
        mixed: false,
    }
}

/// Names a target as the audit has it: `ip/ADDRESS` or `ip/ADDRESS:PORT`.
fn service_word(target: IpAddr, start: &FlowStart) -> String {
    match start.protocol {
        packet::TCP | packet::UDP => format!("ip/{}", SocketAddr::new(target, start.port)),
        _ => format!("ip/{target}"),
    }
}

fn protocol_word(protocol: u8) -> &'static str {
    match protocol {
        packet::TCP => "tcp",
        packet::UDP => "udp",
        packet::ICMP | packet::ICMPV6 => "icmp",
        packet::SCTP => "sctp",
        _ => "ip",
    }
}
