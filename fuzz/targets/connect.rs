//! The target of a CONNECT, and the rules of the allow-list.
//!
//! Invariants: no panic; a printed rule parses as the same rule; a target without a rule is never dialled
//! directly; and without a netmap no target is a node.
#![no_main]

use causeway_gateway::proxy::connect::AllowRule;
use causeway_gateway::proxy::connect::target::{ConnectTarget, decide};
use causeway_netmap::NetmapView;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    let (rule, authority) = data.split_once('\n').unwrap_or((data, data));
    let view = NetmapView::default();
    assert!(decide(&view, &[], authority).is_err());
    let Ok(rule) = rule.parse::<AllowRule>() else { return };
    assert_eq!(rule.to_string().parse::<AllowRule>().as_ref(), Ok(&rule));
    if let Ok(target) = decide(&view, std::slice::from_ref(&rule), authority) {
        let ConnectTarget::Direct { host, port } = target else { panic!("there are no nodes") };
        assert!(rule.allows(&host, port));
    }
});
