//! Objects as rows, as `kubectl get` and `causeway get` print them.
//!
//! Columns and cells per kind; the server wraps them into a `metav1.Table`. Ages are computed from the `now`
//! that is passed in. Priority 0 is always shown, priority 1 only in wide output.

mod text;

use serde_json::{Value, json};

pub use text::{age, bytes};

use crate::gateway_stats::{GatewayStats, version_of};
use crate::kinds::{EGateway, EPolicy, EServer, EService, ESite, Event, Kind, Limits, ServiceExpose};
use crate::object::Object;
use crate::{ConditionStatus, Time, allocate, conditions};

/// One column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    pub name: &'static str,
    /// JSON type of the cells: string or integer.
    pub cell: &'static str,
    pub description: &'static str,
    /// 0: always shown, 1: wide output.
    pub priority: u8,
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column { name, cell: "string", description, priority: 0 }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    Column { name, cell: "string", description, priority: 1 }
}

const fn integer(name: &'static str, description: &'static str, priority: u8) -> Column {
    Column { name, cell: "integer", description, priority }
}

const NAME: Column = column("Name", "Name of the object.");
const SITE: Column = column("Site", "Name of the ESite.");
const POLICIES: Column = column("Policies", "Names of the EPolicys that allow subjects to use it.");
const READY: Column = column("Ready", "True if all referenced objects exist.");
const AGE: Column = column("Age", "Time since it was created.");
const REASON: Column = wide("Reason", "Reason of the Ready condition, as one word.");

/// The columns of a kind, in the order of `cells`.
pub fn columns(kind: Kind) -> &'static [Column] {
    match kind {
        Kind::ESite => {
            const {
                &[
                    NAME,
                    column("Subnets", "Networks inside the site."),
                    READY,
                    AGE,
                    wide("Mapped", "Networks that other sites see under other addresses."),
                    REASON,
                ]
            }
        }
        Kind::EGateway => {
            const {
                &[
                    NAME,
                    SITE,
                    column("IP", "Address of the gateway in its site."),
                    column("Connected", "True if its channel to the cloud is up."),
                    column("Transport", "Transport of the channel: quic or tcp."),
                    column("RTT", "Round trip to the cloud."),
                    AGE,
                    wide("CIDR", "Range of the local addresses of remote services."),
                    wide("Sent", "Bytes sent to the gateway."),
                    wide("Received", "Bytes received from the gateway."),
                    wide("Since", "Time since the channel went up or down."),
                    wide("Generation", "The netmap it last acknowledged."),
                    integer("Priority", "The gateway with the highest priority of a site is active.", 1),
                    wide("Drain", "True while the gateway gets no new streams."),
                    wide(
                        "Version",
                        "Version of its program; of a gateway that is away, the last one it had.",
                    ),
                    REASON,
                ]
            }
        }
        Kind::EService => {
            const {
                &[
                    NAME,
                    SITE,
                    column("Protocol", "Protocol of the service."),
                    column("Address", "Address of the service in its site."),
                    integer("Port", "Port it listens on, at its presences too.", 0),
                    READY,
                    AGE,
                    wide("Domain", "Its name inside its site."),
                    wide("Health", "Health check of its backends."),
                    REASON,
                ]
            }
        }
        Kind::EServer => {
            const {
                &[
                    NAME,
                    SITE,
                    column("IP", "Address of the host."),
                    column("Ports", "Ports that can be reached by its name."),
                    READY,
                    AGE,
                    wide("Policies", "Names of the EPolicys that allow subjects to reach its ports."),
                    REASON,
                ]
            }
        }
        Kind::EPolicy => {
            const {
                &[
                    NAME,
                    column("Servers", "EServers that are allowed."),
                    column("Sites", "ESites whose hosts are allowed."),
                    READY,
                    AGE,
                    wide("Ports", "Protocols and ports that are allowed; none: all."),
                    wide("Limits", "Limits for each subject."),
                    integer("Rules", "Number of HTTP rules.", 1),
                    REASON,
                ]
            }
        }
        Kind::ServiceExpose => {
            const {
                &[
                    NAME,
                    column("Service", "Name of the EService that is presented."),
                    column("DNS", "DNS name of the service at the sites."),
                    column("Sites", "Sites it is presented at."),
                    POLICIES,
                    READY,
                    AGE,
                    wide("Presented", "Its address at every site, or the reason why there is none."),
                    REASON,
                ]
            }
        }
        Kind::VirtualPresence => {
            const {
                &[
                    NAME,
                    column("IP", "Local address of the service."),
                    column("Service", "Name of the EService."),
                    SITE,
                    column("Made", "Creator: the controller, or a user (hand)."),
                    READY,
                    AGE,
                    REASON,
                ]
            }
        }
        Kind::ECommunity => {
            const {
                &[
                    NAME,
                    column("Members", "Sites whose networks reach each other."),
                    column("Policies", "Names of the EPolicys that narrow it; none: everything is allowed."),
                    READY,
                    AGE,
                    wide("MapFrom", "Range of mapped networks."),
                    REASON,
                ]
            }
        }
        Kind::Namespace => const { &[NAME, column("Status", "The phase of the namespace."), AGE] },
        Kind::Service => const { &[NAME, AGE] },
        Kind::Event => {
            const {
                &[
                    column("Last Seen", "Time since it was last seen."),
                    column("Type", "Normal or Warning."),
                    column("Reason", "Reason, as one word."),
                    column("Object", "The object it is about."),
                    wide("Subobject", "The part of the object it is about."),
                    wide("Source", "The component that reports it."),
                    column("Message", "Description of the event."),
                    wide("First Seen", "Time since it was first seen."),
                    integer("Count", "Number of occurrences.", 1),
                    wide("Name", "Name of the object."),
                ]
            }
        }
    }
}

/// The columns of a resource that declares none, as in Kubernetes.
pub const DEFAULT_COLUMNS: [Column; 2] = [NAME, AGE];

/// `columnDefinitions` of a Table.
pub fn column_definitions(kind: Kind) -> Value {
    definitions_of(columns(kind))
}

/// `columnDefinitions` of a Table with these columns.
pub fn definitions_of(columns: &[Column]) -> Value {
    let definition = |column: &Column| {
        json!({
            "name": column.name,
            "type": column.cell,
            "format": if column.name == "Name" { "name" } else { "" },
            "description": column.description,
            "priority": column.priority,
        })
    };
    columns.iter().map(definition).collect()
}

/// Returns one row, in the order of `columns`. The stats of a gateway are added here.
pub fn cells(object: &Object, now: Time, stats: Option<&GatewayStats>) -> Vec<Value> {
    let name = Value::from(object.name());
    let (ready, reason) = ready(object);
    let age = match object.metadata().creation_timestamp {
        Some(created) => age(now.since(created)).into(),
        None => Value::from("<unknown>"),
    };
    match object {
        Object::ESite(site) => {
            vec![name, text::list(&site.subnets), ready, age, text::list(&mapped(site)), reason]
        }
        Object::EGateway(gateway) => gateway_cells(gateway, now, stats, name, age, reason),
        Object::EService(service) => vec![
            name,
            text::word(&service.e_site_name),
            service.protocol.as_str().into(),
            address(service),
            service.port.into(),
            ready,
            age,
            text::word(&service.domain_name),
            health(service),
            reason,
        ],
        Object::EServer(server) => vec![
            name,
            text::word(&server.e_site_name),
            text::word(&server.ip),
            ports(server),
            ready,
            age,
            text::list(&server.e_policys),
            reason,
        ],
        Object::EPolicy(policy) => vec![
            name,
            text::list(&policy.allowed_servers),
            text::list(&policy.allowed_sites),
            ready,
            age,
            text::list(&policy.ports),
            limits(policy),
            policy.http.len().into(),
            reason,
        ],
        Object::ServiceExpose(expose) => vec![
            name,
            text::word(&expose.e_service_name),
            text::word(&expose.dns_name),
            text::list(&expose.e_sites),
            text::list(&expose.e_policys),
            ready,
            age,
            presented(expose),
            reason,
        ],
        Object::VirtualPresence(presence) => vec![
            name,
            text::word(&presence.virtual_ip),
            text::word(&presence.e_service_name),
            text::word(&presence.e_site_name),
            if allocate::is_made(presence) { "controller" } else { "hand" }.into(),
            ready,
            age,
            reason,
        ],
        Object::ECommunity(community) => vec![
            name,
            text::list(&community.members),
            text::list(community.e_policys.as_deref().unwrap_or_default()),
            ready,
            age,
            text::word(&community.map_from),
            reason,
        ],
        Object::Namespace(namespace) => vec![name, text::word(&namespace.state.phase), age],
        Object::Service(_) => vec![name, age],
        Object::Event(event) => event_cells(event, now, name),
    }
}

fn event_cells(event: &Event, now: Time, name: Value) -> Vec<Value> {
    let since = |time: Option<Time>| match time {
        Some(time) => age(now.since(time)).into(),
        None => Value::from("<unknown>"),
    };
    let involved = &event.involved_object;
    let object = format!("{}/{}", involved.kind.to_lowercase(), involved.name);
    let component = match event.source.component.as_str() {
        "" => event.reporting_component.as_str(),
        component => component,
    };
    let host = if event.source.host.is_empty() { &event.reporting_instance } else { &event.source.host };
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    let first = event.first_timestamp.or(event.event_time.map(|time| time.time()));
    vec![
        since(event.last_seen()),
        text::word(&event.kind),
        text::word(&event.reason),
        object.into(),
        event.involved_object.field_path.as_str().into(),
        source.into(),
        event.message.trim().into(),
        since(first.or(event.metadata.creation_timestamp)),
        event.occurrences().into(),
        name,
    ]
}

fn gateway_cells(
    gateway: &EGateway,
    now: Time,
    stats: Option<&GatewayStats>,
    name: Value,
    age_cell: Value,
    reason: Value,
) -> Vec<Value> {
    let unknown = GatewayStats::default();
    let stats = stats.unwrap_or(&unknown);
    vec![
        name,
        text::word(&gateway.e_site_name),
        text::word(&gateway.ip),
        ConditionStatus::from(stats.connected).as_str().into(),
        text::word(stats.transport.as_deref().unwrap_or_default()),
        stats.rtt_ms.map_or_else(|| text::NONE.into(), |rtt| text::milliseconds(rtt).into()),
        age_cell,
        text::word(&gateway.virtual_presence_ip_cidr),
        bytes(stats.sent_bytes).into(),
        bytes(stats.received_bytes).into(),
        stats.since.map_or_else(|| text::NONE.into(), |since| age(now.since(since)).into()),
        text::word(stats.generation.as_deref().unwrap_or_default()),
        gateway.priority.into(),
        ConditionStatus::from(gateway.drain).as_str().into(),
        text::word(stats.version().or_else(|| version_of(&gateway.status.software)).unwrap_or_default()),
        reason,
    ]
}

/// Returns status and reason of the summary condition.
fn ready(object: &Object) -> (Value, Value) {
    match object.status().condition("Ready") {
        Some(ready) => (ready.status.as_str().into(), text::word(&ready.reason)),
        None => (ConditionStatus::Unknown.as_str().into(), text::NONE.into()),
    }
}

/// Returns the message of the condition; a long one is truncated, because it is one cell.
fn presented(expose: &ServiceExpose) -> Value {
    const CHARACTERS_MAX: usize = 120;
    let message = expose.status.condition(conditions::PRESENTED).map(|condition| condition.message.as_str());
    let message = message.unwrap_or_default();
    match message.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &message[..end]).into(),
        None => text::word(message),
    }
}

fn mapped(site: &ESite) -> Vec<String> {
    let all = site.mapped_subnets.iter().chain(&site.status.mapped_subnets);
    all.map(|mapping| format!("{}={}", mapping.subnet, mapping.seen_as)).collect()
}

fn address(service: &EService) -> Value {
    match service.endpoints.as_slice() {
        [] if service.ip.is_empty() => text::word(&service.domain_name),
        [] => text::word(&service.ip),
        [only] => text::word(&only.ip),
        several => format!("{} endpoints", several.len()).into(),
    }
}

fn health(service: &EService) -> Value {
    use crate::kinds::HealthCheckType::{Http, Tcp};
    match &service.health_check {
        None => text::NONE.into(),
        Some(check) => match check.kind {
            Tcp => format!("TCP every {}s", check.interval_seconds).into(),
            Http => format!("HTTP {} every {}s", check.path, check.interval_seconds).into(),
        },
    }
}

fn ports(server: &EServer) -> Value {
    let ports: Vec<String> = server.ports.iter().map(ToString::to_string).collect();
    text::list(&ports)
}

fn limits(policy: &EPolicy) -> Value {
    let none = Limits::default();
    let limits = policy.limits.as_ref().unwrap_or(&none);
    let parts = [
        limits.connections_per_second.map(|limit| format!("{limit} conn/s")),
        limits.connections.map(|limit| format!("{limit} conn")),
        limits.bytes_per_second_in.map(|limit| format!("{}/s in", bytes(limit.unsigned_abs()))),
        limits.bytes_per_second_out.map(|limit| format!("{}/s out", bytes(limit.unsigned_abs()))),
        limits.requests_per_second.map(|limit| format!("{limit} req/s")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    text::word(&parts.join(", "))
}

#[cfg(test)]
mod tests;
