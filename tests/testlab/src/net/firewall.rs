//! Rules for packets at a node beside forwarding: masquerade, and the faults that a test asked for.
//!
//! Values in, scripts of nftables out. The translation stands in a table of its own, which is never replaced; so
//! existing mappings live on while faults come and go.

use std::collections::BTreeSet;

use super::plan::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    Udp,
    Tcp,
    /// Both. Packets that the link itself needs, such as neighbour discovery, pass.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Packets vanish.
    Drop(Traffic),
    /// The sender is told, with a reset or an ICMP message.
    Reject(Traffic),
    /// This number of a thousand packets vanish, at random.
    Lose(Traffic, u16),
    /// Packets vanish above this number of thousand bytes a second, both directions together.
    Throttle(Traffic, u32),
}

impl Fault {
    /// The words of a rule.
    fn rule(self) -> String {
        let (traffic, verdict) = match self {
            Fault::Drop(traffic) => (traffic, "drop".to_owned()),
            Fault::Reject(Traffic::Tcp) => (Traffic::Tcp, "reject with tcp reset".to_owned()),
            Fault::Reject(traffic) => (traffic, "reject".to_owned()),
            Fault::Lose(traffic, per_mille) => {
                (traffic, format!("numgen random mod 1000 < {per_mille} drop"))
            }
            Fault::Throttle(traffic, kilobytes) => {
                (traffic, format!("limit rate over {kilobytes} kbytes/second burst 32 kbytes drop"))
            }
        };
        let protocols = match traffic {
            Traffic::Udp => "udp",
            Traffic::Tcp => "tcp",
            Traffic::All => "{ tcp, udp }",
        };
        format!("meta l4proto {protocols} {verdict}")
    }
}

#[derive(Debug)]
pub struct Rules {
    kind: Kind,
    outside: Vec<String>,
    faults: BTreeSet<Fault>,
    cut: BTreeSet<String>,
}

impl Rules {
    /// `outside` are the interfaces of the uplinks, where a NAT masquerades.
    pub fn new(kind: Kind, outside: Vec<String>) -> Rules {
        Rules { kind, outside, faults: BTreeSet::new(), cut: BTreeSet::new() }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn impose(&mut self, fault: Fault) {
        self.faults.insert(fault);
    }

    pub fn lift(&mut self, fault: Fault) {
        self.faults.remove(&fault);
    }

    /// Everything that comes and goes by this interface vanishes.
    pub fn cut(&mut self, interface: &str) {
        self.cut.insert(interface.to_owned());
    }

    pub fn join(&mut self, interface: &str) {
        self.cut.remove(interface);
    }

    /// The script that makes a NAT of this node.
    pub fn nat(&self) -> Option<String> {
        if self.kind != Kind::Nat {
            return None;
        }
        let rules: String =
            self.outside.iter().map(|interface| format!("oifname \"{interface}\" masquerade\n")).collect();
        Some(format!(
            "table inet lab_nat {{\nchain out {{ type nat hook postrouting priority srcnat;\n{rules}}}\n}}\n"
        ))
    }

    /// The script that puts all present faults in place of the earlier ones, at one stroke.
    pub fn faults(&self) -> String {
        let hooks: &[&str] = match self.kind {
            Kind::Host => &["input", "output"],
            Kind::Router | Kind::Nat => &["forward"],
        };
        let rules: String = self.faults.iter().map(|fault| fault.rule() + "\n").collect();
        let mut chains: String = hooks
            .iter()
            .map(|hook| format!("chain {hook} {{ type filter hook {hook} priority 0;\n{rules}}}\n"))
            .collect();
        // As early and as late as can be: before anything is tracked, after it was translated.
        for (hook, priority, side) in [("prerouting", -400, "iifname"), ("postrouting", 400, "oifname")] {
            let cuts: String = self.cut.iter().map(|name| format!("{side} \"{name}\" drop\n")).collect();
            chains.push_str(&format!(
                "chain {hook} {{ type filter hook {hook} priority {priority};\n{cuts}}}\n"
            ));
        }
        // `add` first, since a table that is not there cannot be deleted.
        format!("add table inet lab\ndelete table inet lab\ntable inet lab {{\n{chains}}}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_guards_itself_and_a_router_what_it_forwards() {
        let mut host = Rules::new(Kind::Host, vec!["eth0".to_owned()]);
        host.impose(Fault::Drop(Traffic::Udp));
        assert_eq!(host.faults().matches("meta l4proto udp drop").count(), 2);
        let mut router = Rules::new(Kind::Router, vec![]);
        router.impose(Fault::Lose(Traffic::All, 50));
        assert!(router.faults().contains(
            "hook forward priority 0;\nmeta l4proto { tcp, udp } numgen random mod 1000 < 50 drop"
        ));
        assert!(!router.faults().contains("hook input"));
        router.lift(Fault::Lose(Traffic::All, 50));
        assert!(!router.faults().contains("numgen"));
    }

    #[test]
    fn a_cut_drops_both_directions_of_one_interface() {
        let mut router = Rules::new(Kind::Router, vec![]);
        router.cut("edge");
        let script = router.faults();
        assert!(
            script.contains("iifname \"edge\" drop") && script.contains("oifname \"edge\" drop"),
            "{script}"
        );
        router.join("edge");
        assert!(!router.faults().contains("edge"));
    }

    #[test]
    fn only_a_nat_masquerades_and_only_on_its_uplinks() {
        assert_eq!(Rules::new(Kind::Router, vec!["eth0".to_owned()]).nat(), None);
        let script = Rules::new(Kind::Nat, vec!["eth0".to_owned()]).nat().unwrap();
        assert!(script.contains("oifname \"eth0\" masquerade"), "{script}");
    }
}
