//! The flows of an Open vSwitch bridge that lead packets to the port of the tunnel. Pure.
//!
//! Input: the number and hardware address of the port, and the networks that the tunnel takes. Output: flows as `ovs-ofctl`
//! reads them, and a bundle that replaces all flows of a cookie by them. Addresses are not rewritten by flows: the client's
//! address on the wire is allocated when its first packet passes the policy, and every flow is accounted to a service, which
//! `worker` does for each packet.

use std::fmt::Write;

use ipnet::IpNet;

use crate::neighbour_proxy::message::HardwareAddress;

/// Marks flows of this program: the upper 16 bits of a cookie. The rest is made from the key of the gateway.
const COOKIE_MARK: u64 = 0xca05 << 48;

/// Priorities, above those that networks of virtual machines use. Flows of one priority exclude each other, so that the
/// check for overlaps finds foreign flows only.
const FROM_TUNNEL: u16 = 61_003;
const QUESTION: u16 = 61_002;
const TO_TUNNEL: u16 = 61_001;
const TO_PORT: u16 = 61_000;
/// Matches frames without a VLAN tag: networks of a VLAN are none of the tunnel's.
const UNTAGGED: &str = "vlan_tci=0x0000";

/// The facts that the flows follow from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgePort {
    pub cookie: u64,
    /// The OpenFlow number of the port.
    pub number: u32,
    pub hardware: HardwareAddress,
}

/// Returns the cookie of a gateway.
pub fn cookie(key: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, ..] = *key;
    COOKIE_MARK | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns the hardware address of a gateway's port: a locally administered one, the same after a restart.
pub fn hardware_address(key: &[u8; 32]) -> HardwareAddress {
    let [a, b, c, ..] = *key;
    [0x02, 0xca, 0x05, a, b, c]
}

/// Returns the flows for networks that do not overlap.
pub fn wanted(port: &BridgePort, networks: &[IpNet]) -> Vec<String> {
    let (number, own) = (port.number, in_hex(port.hardware));
    let flow = |priority: u16, rest: &str| {
        // A bundle with a flow in the place of a foreign one is refused.
        format!("cookie={:#x},table=0,priority={priority},check_overlap,{rest}", port.cookie)
    };
    let mut flows = vec![
        // Frames of the tunnel have the hardware address of their host.
        flow(FROM_TUNNEL, &format!("in_port={number},actions=NORMAL")),
        flow(TO_PORT, &format!("dl_dst={own},actions=output:{number}")),
    ];
    for network in networks {
        let to_port = format!("mod_dl_dst:{own},output:{number}");
        match network {
            IpNet::V4(_) => {
                flows.push(flow(
                    QUESTION,
                    &format!("{UNTAGGED},arp,arp_op=1,arp_tpa={network},actions={}", arp_answer(port)),
                ));
                flows.push(flow(TO_TUNNEL, &format!("{UNTAGGED},ip,nw_dst={network},actions={to_port}")));
            }
            IpNet::V6(_) => {
                // No flow can make an advertisement of a solicitation: `tap_device` answers.
                let question = format!("{UNTAGGED},icmp6,icmp_type=135,icmp_code=0,nd_target={network}");
                flows.push(flow(QUESTION, &format!("{question},actions=output:{number}")));
                flows.push(flow(TO_TUNNEL, &format!("{UNTAGGED},ipv6,ipv6_dst={network},actions={to_port}")));
            }
        }
    }
    flows
}

/// Returns the input of `ovs-ofctl --bundle add-flows` that replaces all flows of the cookie.
pub fn replacement(cookie: u64, flows: &[String]) -> String {
    let mut text = format!("delete {}\n", filter(cookie));
    for flow in flows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "add {flow}");
    }
    text
}

/// Returns the match of the flows with the cookie.
pub fn filter(cookie: u64) -> String {
    format!("cookie={cookie:#x}/-1")
}

/// Returns the flows in the output of `ovs-ofctl dump-flows`, in an order of their own.
pub fn dumped(text: &str) -> Vec<String> {
    let mut flows: Vec<String> =
        text.lines().map(str::trim).filter(|line| line.starts_with("cookie=")).map(str::to_owned).collect();
    flows.sort();
    flows
}

/// The actions that make the answer of an ARP request, and send it back.
fn arp_answer(port: &BridgePort) -> String {
    let own = in_hex(port.hardware);
    let number = port.hardware.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    [
        "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]".to_owned(),
        format!("mod_dl_src:{own}"),
        "load:0x2->NXM_OF_ARP_OP[]".to_owned(),
        "move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]".to_owned(),
        format!("load:{number:#x}->NXM_NX_ARP_SHA[]"),
        "move:NXM_OF_ARP_TPA[]->NXM_NX_REG0[]".to_owned(),
        "move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[]".to_owned(),
        "move:NXM_NX_REG0[]->NXM_OF_ARP_SPA[]".to_owned(),
        "IN_PORT".to_owned(),
    ]
    .join(",")
}

fn in_hex(hardware: HardwareAddress) -> String {
    hardware.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> BridgePort {
        BridgePort { cookie: cookie(&[7; 32]), number: 5, hardware: hardware_address(&[7; 32]) }
    }

    fn flows(networks: &[&str]) -> Vec<String> {
        wanted(&port(), &networks.iter().map(|network| network.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn every_flow_has_the_cookie_of_its_gateway_and_replaces_no_foreign_one() {
        let flows = flows(&["198.18.0.1/32", "198.18.128.0/17", "fd00::/64"]);
        assert_eq!(flows.len(), 2 + 2 * 3);
        for flow in &flows {
            assert!(flow.starts_with("cookie=0xca05070707070707,table=0,priority=6100"), "{flow}");
            assert!(flow.contains(",check_overlap,"), "{flow}");
        }
        assert_ne!(cookie(&[7; 32]), cookie(&[8; 32]));
    }

    #[test]
    fn packets_and_questions_for_a_network_are_led_to_the_tunnel() {
        let check = |network: &str, expected: [&str; 2]| {
            let flows = flows(&[network]);
            for part in expected {
                assert!(flows.iter().any(|flow| flow.contains(part)), "{part}: {flows:?}");
            }
        };
        let v4 = "ip,nw_dst=198.18.0.1/32,actions=mod_dl_dst:02:ca:05:07:07:07,output:5";
        check("198.18.0.1/32", [v4, "arp,arp_op=1,arp_tpa=198.18.0.1/32,actions=move:"]);
        let v6 = "ipv6,ipv6_dst=fd00::/64,actions=mod_dl_dst:02:ca:05:07:07:07,output:5";
        check("fd00::/64", [v6, "icmp6,icmp_type=135,icmp_code=0,nd_target=fd00::/64,actions=output:5"]);
        assert_eq!(flows(&[]).len(), 2, "without networks the port alone");
    }

    #[test]
    fn one_bundle_removes_all_flows_of_the_cookie_and_adds_the_wanted_ones() {
        let text = replacement(0xca05, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(text, "delete cookie=0xca05/-1\nadd a\nadd b\n");
    }

    #[test]
    fn a_dump_is_compared_without_its_head_and_order() {
        let one = " cookie=0x1, priority=2 actions=drop\n cookie=0x1, priority=1 actions=NORMAL\n";
        let other = "NXST_FLOW reply (xid=0x4):\n cookie=0x1, priority=1 actions=NORMAL\n cookie=0x1, priority=2 actions=drop\n";
        assert_eq!(dumped(one), dumped(other));
        assert_eq!(dumped(one).len(), 2);
        assert!(dumped("").is_empty());
    }
}
