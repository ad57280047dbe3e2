//! Selected objects, and refused selectors.

use serde_json::json;

use super::*;

#[test]
fn label_selectors_follow_the_grammar_of_kubernetes() {
    let rows = [
        ("", true),
        ("  ", true),
        ("tier=factory", true),
        ("tier==factory", true),
        ("tier = factory", true),
        ("tier=cloud", false),
        ("tier!=cloud", true),
        ("tier!=factory", false),
        ("missing!=x", true),
        ("tier", true),
        ("missing", false),
        ("!missing", true),
        ("! missing", true),
        ("!tier", false),
        ("tier in (factory,cloud)", true),
        ("tier in (cloud)", false),
        ("tier in(factory)", true),
        ("tier notin (cloud, shop)", true),
        ("tier notin (factory)", false),
        ("missing notin (x)", true),
        ("missing in (x)", false),
        ("empty=", true),
        ("empty in ()", true),
        ("empty in (,x)", true),
        ("tier=", false),
        ("example.com/zone=a", true),
        ("tier=factory,example.com/zone in (a,b),!missing", true),
        ("tier=factory,example.com/zone in (b)", false),
        ("in in (in)", true),
        ("notin", false),
        ("floor>3", true),
        ("floor > 4", false),
        ("floor<5,floor>0", true),
        ("floor<4", false),
        ("missing>0", false),
        ("tier>0", false),
    ];
    for (selector, expected) in rows {
        check(selector, "", expected);
    }
}

#[test]
fn bad_label_selectors_are_refused_with_the_place() {
    let rows = [
        (",", "expected the key of a label"),
        ("a,", "at character 2: found the end, expected the key of a label"),
        ("a=b c", "found \"c\", expected ',' or the end"),
        ("a in b", "found \"b\", expected '('"),
        ("a in (b", "found the end, expected ',' or ')'"),
        ("a in (b c)", "found \"c\", expected ',' or ')'"),
        ("=b", "found '=', expected the key"),
        ("a>x", "values[0][a]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("a>", "found the end, expected a value"),
        ("a>1.5", "must be an integer"),
        ("a>-1", "\"-1\" is no value"),
        ("a>(1)", "found '(', expected a value"),
        ("a b", "found \"b\" after the key, expected '='"),
        ("a=b=c", "found '=', expected ',' or the end"),
        ("a!b", "found '!' after the key"),
        ("-a=b", "\"-a\" is no key"),
        ("a=b_", "\"b_\" is no value"),
        ("a=ü", "\"ü\" is no value"),
        ("!a=b", "found '=', expected ',' or the end"),
        ("()", "found '(', expected the key"),
    ];
    for (selector, expected) in rows {
        let error = LabelSelector::parse(selector).unwrap_err().to_string();
        assert!(error.contains(expected), "{selector}: {error}");
    }
    assert!(LabelSelector::parse(&"a,".repeat(1000)).is_err());
    assert!(
        LabelSelector::parse(&format!("a in ({})", (0..2000).map(|n| format!("v{n},")).collect::<String>()))
            .is_err()
    );
}

#[test]
fn field_selectors_compare_the_name_and_the_references() {
    let rows = [
        ("", true),
        ("metadata.name=web", true),
        ("metadata.name==web", true),
        ("metadata.name!=web", false),
        ("metadata.name=other", false),
        ("eServiceName=nginx", true),
        ("eServiceName!=nginx", false),
        ("eSites=berlin", true),
        ("eSites=paris", false),
        ("eSites!=paris", true),
        ("eSites!=berlin", false),
        ("ePolicys=p1,eSites=oslo", true),
        ("ePolicys=p1,eSites=paris", false),
        ("metadata.name=", false),
        (r"metadata.name=web\,x", false),
        (",metadata.name=web,", true),
    ];
    for (selector, expected) in rows {
        check("", selector, expected);
    }
}

#[test]
fn bad_field_selectors_are_refused_and_the_supported_fields_listed() {
    let rows = [
        ("dnsName=x", "cannot be selected by; supported: metadata.name, eServiceName, eSites, ePolicys"),
        ("metadata.labels=x", "supported: metadata.name"),
        ("metadata.name", "has no operator; write field=value or field!=value"),
        ("metadata.name=a=b", "'=' needs one before it"),
        (r"metadata.name=a\b", "'\\' may stand only before"),
        (r"metadata.name=a\", "'\\' may stand only before"),
        (r"metadata.name\=a", "has no operator"),
        ("=a", "the field \"\" of ServiceExpose"),
    ];
    for (selector, expected) in rows {
        let error = FieldSelector::parse(Kind::ServiceExpose, selector).unwrap_err().to_string();
        assert!(error.contains(expected), "{selector}: {error}");
    }
    assert!(FieldSelector::parse(Kind::ESite, &"metadata.name=a,".repeat(1000)).is_err());
}

#[test]
fn escaped_characters_belong_to_the_value() {
    let selector = FieldSelector::parse(Kind::ESite, r"metadata.name=a\,b\=c\\d").unwrap();
    assert_eq!(selector.exact_name(), Some(r"a,b=c\d"));
    assert_eq!(FieldSelector::parse(Kind::ESite, "metadata.name!=a").unwrap().exact_name(), None);
}

#[test]
fn every_selectable_field_of_a_kind_is_looked_at() {
    // A selectable field that is not filled from the object would silently match nothing.
    for kind in Kind::ALL {
        let schema = crate::schema::of(kind);
        for field in selectable_fields(kind).iter().filter(|field| **field != "metadata.name") {
            let is_list = schema["properties"][field]["type"] == "array";
            let value = if is_list { json!(["wanted"]) } else { json!("wanted") };
            let object = Object::decode(kind, json!({ *field: value })).unwrap().object;
            let selector = Selector::parse(kind, "", &format!("{field}=wanted")).unwrap();
            assert!(selector.matches_object(&object), "{kind} {field}");
            assert!(
                selector.matches(&SelectableFields::from_stored(&object.encode()).unwrap()),
                "{kind} {field}"
            );
            assert!(!selector.matches_object(&Object::empty(kind)), "{kind} {field}");
        }
    }
}

/// Evaluates on the object and on its stored form; both must agree.
#[track_caller]
fn check(labels: &str, fields: &str, expected: bool) {
    let value = json!({
        "metadata": {"name": "web", "labels": {"tier": "factory", "example.com/zone": "a", "empty": "", "in": "in", "floor": "4"}},
        "eServiceName": "nginx", "eSites": ["berlin", "oslo"], "ePolicys": ["p1"], "dnsName": "x\n\"",
    });
    let object = Object::decode(Kind::ServiceExpose, value).unwrap().object;
    let selector = Selector::parse(Kind::ServiceExpose, labels, fields).unwrap();
    assert_eq!(selector.matches_object(&object), expected, "{labels} {fields}");
    let stored = object.encode();
    assert_eq!(
        selector.matches(&SelectableFields::from_stored(&stored).unwrap()),
        expected,
        "{labels} {fields} stored"
    );
}

#[test]
fn events_are_found_by_what_they_are_about() {
    let event = serde_json::json!({
        "metadata": {"name": "oslo.1", "namespace": "default"},
        "involvedObject": {"kind": "EGateway", "name": "oslo", "uid": "u", "apiVersion": "causeway.io/v1"},
        "reason": "Disconnected", "type": "Warning", "reportingComponent": "causeway-cloud",
    });
    let object = Object::decode(Kind::Event, event).unwrap().object;
    let stored = object.encode();
    let check = |fields: &str, expected: bool| {
        let selector = Selector::parse(Kind::Event, "", fields).unwrap();
        assert_eq!(selector.matches_object(&object), expected, "{fields}");
        assert_eq!(
            selector.matches(&SelectableFields::from_stored(&stored).unwrap()),
            expected,
            "{fields} as stored"
        );
    };
    // The query of `kubectl describe`, with the empty namespace of a cluster-scoped object.
    let describe = "involvedObject.name=oslo,involvedObject.namespace=,involvedObject.kind=EGateway,involvedObject.uid=u";
    check(describe, true);
    check("involvedObject.kind=EGateway,involvedObject.name=oslo,involvedObject.apiVersion=v1", true);
    check("involvedObject.apiVersion=causeway.io/v1", true);
    check("involvedObject.apiVersion=apps/v1", false);
    check("involvedObject.apiVersion!=v1", false);
    check("regarding.name=oslo,reportingController=causeway-cloud", true);
    check("type=Normal", false);
    check("type!=Normal,reason=Disconnected,source=causeway-cloud", true);
    check("metadata.namespace=default", true);
    check("metadata.namespace=kube-system", false);
    assert!(Selector::parse(Kind::Event, "", "message=x").is_err());
}
