//! Lists every condition and reason that Causeway writes, for the reference `docs/conditions.md`.
//!
//! The list is checked against the code in two ways: `Findings` asserts in the tests of this crate that a finding is listed for its kind, and a
//! test compares the names with the string literals of the files that write conditions. `page` renders the reference.

mod page;

use super::*;

/// A condition of some kinds.
pub(super) struct ConditionEntry {
    pub kinds: &'static [Kind],
    pub condition: &'static str,
    /// The meaning of status True.
    pub meaning: &'static str,
    pub reasons: &'static [ReasonEntry],
}

/// A reason, the statuses it stands with, its meaning, and the action of an operator.
pub(super) struct ReasonEntry {
    pub reason: &'static str,
    pub status: ConditionStatus,
    pub meaning: &'static str,
    pub action: &'static str,
}

const fn holds(reason: &'static str, meaning: &'static str) -> ReasonEntry {
    ReasonEntry { reason, status: ConditionStatus::True, meaning, action: "" }
}

const fn fails(reason: &'static str, meaning: &'static str, action: &'static str) -> ReasonEntry {
    ReasonEntry { reason, status: ConditionStatus::False, meaning, action }
}

/// Tells whether a finding is listed. `Ready` has the reason of the first finding that fails.
pub(super) fn is_listed(kind: Kind, condition: &str, status: ConditionStatus, reason: &str) -> bool {
    let mut entries =
        CATALOG.iter().filter(|entry| entry.condition == condition && entry.kinds.contains(&kind));
    entries.any(|entry| entry.reasons.iter().any(|row| row.reason == reason && row.status == status))
}

const CONNECT_GATEWAY: &str = "Start the edge there, or see `causeway doctor SITE`.";
const CREATE_SITE: &str = "Create the ESite, or correct the name.";
const JOIN_SITE: &str = "Let a gateway join: `causeway token create --site SITE`.";

pub(super) const CATALOG: &[ConditionEntry] = &[
    ConditionEntry {
        kinds: &[
            Kind::ESite,
            Kind::EGateway,
            Kind::EService,
            Kind::EServer,
            Kind::EPolicy,
            Kind::ServiceExpose,
            Kind::VirtualPresence,
            Kind::ECommunity,
        ],
        condition: READY,
        meaning: "Summarises the object: no condition that counts has failed. When False, the reason is that of the first failed condition and the message has all of them. `GatewaysConnected`, `BackendsAnswer`, `TunnelsKnown` and pending allocations do not count. An EGateway is ready only while it is connected.",
        reasons: &[
            holds("AllResolved", "No condition that counts has failed."),
            fails(
                "NeverConnected",
                "EGateway only: the gateway has never connected to this cloud.",
                "Start `causeway edge` with a join token for this gateway.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway, Kind::EService, Kind::EServer, Kind::VirtualPresence],
        condition: SITE_RESOLVED,
        meaning: "The ESite that the object names exists.",
        reasons: &[
            holds("SiteFound", "It exists."),
            fails("SiteMissing", "It does not exist.", CREATE_SITE),
            fails(
                "SiteUnknown",
                "VirtualPresence only: `eSiteName` is not set, and no gateway's range contains the address.",
                "Set `eSiteName`.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EPolicy, Kind::ServiceExpose],
        condition: SITES_RESOLVED,
        meaning: "Every ESite that the object names exists.",
        reasons: &[
            holds("SitesFound", "All exist."),
            holds("NoneNamed", "EPolicy only: no site is named; `ServersResolved` says that nothing is."),
            fails("SiteMissing", "The ESites of the message do not exist.", CREATE_SITE),
            fails(
                "NoSites",
                "`eSites` is empty: the service is presented nowhere.",
                "Name sites in `eSites`.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ECommunity],
        condition: MEMBERS_RESOLVED,
        meaning: "Every member exists.",
        reasons: &[
            holds("SitesFound", "All exist."),
            fails("SiteMissing", "The ESites of the message do not exist.", CREATE_SITE),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ESite, Kind::EService, Kind::ServiceExpose],
        condition: GATEWAYS_RESOLVED,
        meaning: "Every site concerned has an EGateway.",
        reasons: &[
            holds("GatewaysFound", "Every site has one."),
            fails("GatewayMissing", "The sites of the message have none.", JOIN_SITE),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EService, Kind::EServer, Kind::ServiceExpose],
        condition: GATEWAYS_CONNECTED,
        meaning: "A gateway of every site concerned is connected to the cloud.",
        reasons: &[
            holds("GatewaysConnected", "Every site has a connected gateway."),
            fails("GatewayAway", "No gateway of the sites in the message is connected.", CONNECT_GATEWAY),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ServiceExpose, Kind::VirtualPresence],
        condition: SERVICE_RESOLVED,
        meaning: "The EService exists.",
        reasons: &[
            holds("ServiceFound", "It exists."),
            fails("ServiceMissing", "It does not exist.", "Create the EService, or correct `eServiceName`."),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EPolicy],
        condition: SERVERS_RESOLVED,
        meaning: "Every EServer of `allowedServers` exists, and the policy names a subject.",
        reasons: &[
            holds("ServersFound", "All exist."),
            fails(
                "ServerMissing",
                "The EServers of the message do not exist.",
                "Create them, or correct the names.",
            ),
            fails(
                "NobodyAllowed",
                "`allowedServers` and `allowedSites` are empty: the policy allows no client.",
                "Name sites or servers.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EServer, Kind::ServiceExpose, Kind::ECommunity],
        condition: POLICIES_RESOLVED,
        meaning: "Every EPolicy that the object names exists and can be applied. An EServer without ports and an ECommunity without `ePolicys` need none.",
        reasons: &[
            holds("PoliciesFound", "All exist."),
            fails(
                "NoPolicies",
                "`ePolicys` is empty: no client is allowed (default deny).",
                "Name a policy.",
            ),
            fails(
                "PolicyMissing",
                "The EPolicies of the message do not exist; all other attached policies are in force.",
                "Create them, or correct the names.",
            ),
            fails(
                "HttpRules",
                "ECommunity only: a policy has `http` rules and allows nothing at layer 3.",
                "Name a policy without `http`.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EServer, Kind::VirtualPresence],
        condition: ADDRESS_USABLE,
        meaning: "The address belongs to this object alone and fits its site.",
        reasons: &[
            holds("AddressFree", "No other object has it."),
            fails(
                "AddressTaken",
                "EServer only: another EServer of the site has the same address.",
                "Delete or correct one of them: clients are told apart by their addresses.",
            ),
            fails(
                "AddressUnusable",
                "VirtualPresence only: the address is outside the range of the gateway, or taken.",
                "Choose an address of `virtualPresenceIPcidr`, or delete the VirtualPresence.",
            ),
            fails("GatewayMissing", "VirtualPresence only: the site has no EGateway.", JOIN_SITE),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ServiceExpose],
        condition: NAME_FREE,
        meaning: "No other object has the `dnsName` at these sites.",
        reasons: &[
            holds("NameFree", "The exposure has its name everywhere."),
            holds("NoName", "The exposure has no `dnsName`."),
            fails(
                "NameConflict",
                "An older exposure of another service, or an EServer with ports, has the name.",
                "Choose another `dnsName`, or delete the other object.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ServiceExpose],
        condition: PRESENTED,
        meaning: "The service has an address at every site of `eSites`; the message lists them.",
        reasons: &[
            holds("Presented", "It has an address at every site."),
            fails(
                "PresencePending",
                "An address is not allocated yet.",
                "Wait; the cloud allocates within a second.",
            ),
            fails("ServiceMissing", "The EService does not exist.", "Create the EService."),
            fails("Nowhere", "No site of `eSites` has a gateway.", JOIN_SITE),
            fails(
                "GatewayMissing",
                "Some sites of `eSites` have no gateway; the message lists the sites that have one.",
                JOIN_SITE,
            ),
            fails(
                "AddressUnusable",
                "A VirtualPresence made by hand has an address that cannot be used at its site.",
                "Correct or delete the VirtualPresence.",
            ),
            fails(
                "PresenceNameTaken",
                "A VirtualPresence of another service has the name that the cloud would use.",
                "Delete or rename that VirtualPresence.",
            ),
            fails(
                "CidrFull",
                "Every address of the range is taken.",
                "Give the EGateway a larger `virtualPresenceIPcidr`.",
            ),
            fails(
                "FamilyMissing",
                "Mode translate: the range of the site has no addresses of the server's family.",
                "Add a range of that family to `virtualPresenceIPcidr`.",
            ),
            fails(
                "TranslateRequired",
                "The service has `protocol: IP`, which is carried by `mode: translate` only.",
                "Set `mode: translate`.",
            ),
            fails(
                "BeingDeleted",
                "The ServiceExpose or its EService has a deletion mark: access ends with the mark, not with the last finalizer.",
                "Wait until the finalizers are removed.",
            ),
            fails(
                "NotTranslatable",
                "A field of the EService cannot be honoured for packets; the message names it.",
                "Remove the field, or use mode proxy.",
            ),
            fails(
                "ModeConflict",
                "Another exposure presents the service in mode proxy at one of the sites.",
                "Use one mode for each service and site.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EService, Kind::ServiceExpose],
        condition: BACKENDS_ANSWER,
        meaning: "The gateway of the service reaches its backends. Written when a backend first fails; an exposure copies it from its service.",
        reasons: &[
            holds("BackendsAnswer", "All backends answer again."),
            holds("BackendsLeftOut", "Some backends are left out; the message says why."),
            fails(
                "BackendDown",
                "No backend answers.",
                "Start the backend, or correct `ip`, `port` and `healthCheck`. `causeway doctor SERVICE@SITE` tries it.",
            ),
            fails(
                "BackendDenied",
                "The site's own configuration forbids its gateway to dial the backend.",
                "See `backends-allow` and `backends-deny` at the site (`docs/backends.md`).",
            ),
            ReasonEntry {
                reason: "NotReported",
                status: ConditionStatus::Unknown,
                meaning: "The gateway that serves now has not reported yet.",
                action: "Wait until a gateway of the site is connected.",
            },
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ESite, Kind::ECommunity],
        condition: SUBNETS_DISTINCT,
        meaning: "Networks of the members of a community do not overlap, or are mapped. An ESite has it while it is a member.",
        reasons: &[
            holds("SubnetsDistinct", "They do not overlap."),
            fails(
                "SubnetsOverlap",
                "The networks of the message overlap; the older ESite keeps its route.",
                "Set `ESite.mappedSubnets` or `ECommunity.mapFrom` (`docs/layer3.md`).",
            ),
            fails(
                "RangesPending",
                "Mapped networks are not allocated yet.",
                "Wait; the cloud allocates within a second.",
            ),
            fails(
                "RangeFull",
                "`mapFrom` has no room for a network.",
                "Choose a larger range of the same address family.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::ECommunity],
        condition: TUNNELS_KNOWN,
        meaning: "Every member with gateways has one that has reported a tunnel key.",
        reasons: &[
            holds("TunnelsKnown", "All are known."),
            fails(
                "TunnelUnknown",
                "No gateway of the sites in the message has a tunnel.",
                "Update and connect the edge; see `[tunnel] off` in its configuration.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: TUNNEL_KEY_UNIQUE,
        meaning: "No other gateway has the tunnel key of this one.",
        reasons: &[
            holds("KeyUnique", "It is unique."),
            fails(
                "KeyTaken",
                "Another gateway had the key first, so this one exchanges no packets.",
                "Give each host a data dir of its own: a copied one holds the same key.",
            ),
            fails(
                "KeyClaimed",
                "Another gateway claims the key; this one keeps it.",
                "As for `KeyTaken`, at the other gateway.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: CONNECTED,
        meaning: "The gateway has a session with a replica of the cloud. Away is written when it has lasted: 3 s after a stop, else 15 s or more.",
        reasons: &[
            holds("Connected", "It has a session."),
            fails("Stopped", "The edge was stopped and said so.", "Start it again."),
            fails(
                "LinkLost",
                "The link was lost.",
                "`causeway doctor GATEWAY`; look at power, network and log of the edge.",
            ),
            fails(
                "CloudStopped",
                "The gateway has not come back since the cloud was stopped.",
                "See the log of the edge.",
            ),
            fails(
                "CertificateExpired",
                "The certificate was not renewed in time.",
                "Create a join token with `--replace`.",
            ),
            fails("Refused", "The cloud ended the session.", "See the log of the cloud."),
            fails("Revoked", "The gateway was revoked.", "If it shall return, create a join token for it."),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: ENROLLED_AT_SITE,
        meaning: "The gateway is enrolled for the site of its EGateway. Written when it once was not.",
        reasons: &[
            holds("EnrolledHere", "It is."),
            fails(
                "EnrolledElsewhere",
                "Its certificate is for another site, so its sessions are refused.",
                "Put `eSiteName` back, or let it join anew with a token for the new site.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: LISTENING,
        meaning: "The gateway has all its listeners: DNS, presences, entries, the Kubernetes API at the edge.",
        reasons: &[
            holds("Listening", "It has all of them."),
            fails(
                "NotListening",
                "Some could not be opened; the message has address and reason.",
                "Free the port, give the process the capability, add the address to the host, or change it.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: NETMAP_IN_FORCE,
        meaning: "The gateway applies the newest netmap that it was sent.",
        reasons: &[
            holds(IN_FORCE, "It does."),
            fails(
                "Refused",
                "The gateway refused the netmap and keeps its old one.",
                "See the message; update the older side.",
            ),
            fails(
                "CloudBehind",
                "The gateway has a newer netmap than the cloud can make.",
                "Use `causeway restore` instead of putting a store back.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: NETMAP_PERSISTED,
        meaning: "The netmap is on the gateway's disk. Written when it first could not be.",
        reasons: &[
            holds("Persisted", "It is."),
            fails(
                "NotPersisted",
                "It is in force and not on disk.",
                "Free space on the disk of the gateway's data dir.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: TUNNEL_READY,
        meaning: "The tunnel of layer 3 runs. Written when it first could not.",
        reasons: &[
            holds("TunnelReady", "It runs."),
            fails(
                "TunnelFailed",
                "It does not; the message says why.",
                "Give the process `CAP_NET_ADMIN`, free UDP port 7446, or set `[tunnel] off`.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: READY_FOR_OFFLINE,
        meaning: "Every pod of the site would survive a restart without the cloud (`docs/edge-api.md`).",
        reasons: &[
            holds("PodsCovered", "All would."),
            fails(
                "PodsAtRisk",
                "The message names pods and the objects that the copy lacks for them.",
                "Name the objects in `ESite.cache`, or let the kubelet read them once.",
            ),
        ],
    },
    ConditionEntry {
        kinds: &[Kind::EGateway],
        condition: WITHIN_BYTE_BUDGET,
        meaning: "The Kubernetes API at the edge has moved fewer bytes today than `[kubernetes] bytes-per-day` (`docs/edge-api.md`).",
        reasons: &[
            holds("WithinBudget", "It has."),
            fails(
                "BudgetSpent",
                "Copies that no client watches are not kept current until the next day (UTC); the message names the largest cause.",
                "See `causeway cache` on the edge's host; raise the budget, or narrow what clients read.",
            ),
        ],
    },
];
