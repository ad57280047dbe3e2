//! Properties that hold for every object, every history and every foreign text.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};

use super::entries::ManagedFields;
use super::scope::system_fields;
use super::*;
use crate::patch;

fn elements() -> impl Strategy<Value = Element> {
    prop_oneof![
        4 => "[a-c.:]{0,2}".prop_map(Element::field),
        1 => "[a-b\"<é]{0,2}".prop_map(|text| Element::value_of(&json!(text))),
        1 => any::<i8>().prop_map(|number| Element::value_of(&json!(number))),
        1 => ("[a-b]", "[x-y\"]").prop_map(|(key, value)| Element::key_of(&json!({(key.as_str()): value}), &[&key])),
        1 => (0..3i64).prop_map(Element::Index),
    ]
}

fn sets() -> impl Strategy<Value = FieldSet> {
    vec(vec(elements(), 1..5), 0..12).prop_map(|paths| {
        let mut set = FieldSet::default();
        paths.iter().for_each(|path| set.insert(path));
        set
    })
}

fn members(set: &FieldSet) -> Vec<FieldPath> {
    set.paths()
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(set in sets()) {
        prop_assert_eq!(FieldSet::parse(&set.print()), Ok(set.clone()));
        let text = set.print().to_string();
        prop_assert_eq!(FieldSet::parse(&serde_json::from_str(&text).unwrap()), Ok(set));
    }

    #[test]
    fn sets_of_paths_are_sets(a in sets(), b in sets(), c in sets()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.difference(&b).intersection(&b), FieldSet::default());
        prop_assert_eq!(a.union(&b).difference(&b), a.difference(&b));
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        for path in members(&a.union(&b)) {
            prop_assert!(a.contains(&path.0) || b.contains(&path.0));
        }
        prop_assert_eq!(members(&a.difference(&b)).len() + members(&a.intersection(&b)).len(), members(&a).len());
    }
}

/// The fields of a document, from a set small enough that managers collide.
fn documents() -> impl Strategy<Value = Value> {
    let labels = btree_map(select(vec!["app", "tier"]), select(vec!["x", "y"]), 0..3);
    let sites = subsequence(vec!["s1", "s2", "s3"], 0..=3);
    let check = btree_map(select(vec!["type", "path"]), select(vec!["a", "b"]), 0..3);
    let finalizers = subsequence(vec!["f/1", "f/2"], 0..=2);
    let conditions = btree_map(select(vec!["Ready", "Live"]), select(vec!["True", "False"]), 0..3);
    let scalars = btree_map(select(vec!["port", "ip"]), 0..2u8, 0..3);
    let subnets = btree_set(0..3u8, 0..3);
    (labels, sites, check, finalizers, conditions, scalars, subnets, any::<u8>()).prop_map(
        |(labels, sites, check, finalizers, conditions, scalars, subnets, present)| {
            let conditions: Vec<Value> =
                conditions.iter().map(|(name, status)| json!({"type": name, "status": status})).collect();
            let mut document = json!({"metadata": {"name": "camera"}});
            for (name, value) in scalars {
                document[name] = json!(value);
            }
            let parts = [
                ("labels", json!(labels)),
                ("finalizers", json!(finalizers)),
                ("eSites", json!(sites)),
                ("healthCheck", json!(check)),
                ("subnets", json!(subnets)),
                ("status", json!({"conditions": conditions})),
            ];
            for (bit, (name, value)) in
                parts.into_iter().enumerate().filter(|(bit, _)| present >> bit & 1 == 1)
            {
                let holder = if bit < 2 { &mut document["metadata"] } else { &mut document };
                holder[name] = value;
            }
            document
        },
    )
}

#[derive(Clone, Debug)]
struct Step {
    manager: &'static str,
    api_version: ApiVersion,
    subresource: Subresource,
    apply: bool,
    force: bool,
    document: Value,
}

fn steps() -> impl Strategy<Value = Step> {
    let versions = select(vec![ApiVersion::Core, ApiVersion::Group]);
    let subresources = select(vec![Subresource::Main, Subresource::Main, Subresource::Status]);
    (select(vec!["a", "b", "kubectl"]), versions, subresources, any::<[bool; 2]>(), documents()).prop_map(
        |(manager, api_version, subresource, [apply, force], document)| Step {
            manager,
            api_version,
            subresource,
            apply,
            force,
            document,
        },
    )
}

fn writer(step: &Step, second: usize) -> FieldWriter<'_> {
    let now = Time::from_second(i64::try_from(second).unwrap());
    FieldWriter { manager: step.manager, api_version: step.api_version, subresource: step.subresource, now }
}

/// Returns the object after a step; a conflict leaves it as it was.
fn take(step: &Step, second: usize, live: Option<&Value>) -> Option<Value> {
    let writer = writer(step, second);
    if step.apply {
        return apply(&writer, live, &step.document, step.force).ok().or(live.cloned());
    }
    let mut new =
        live.map_or_else(|| step.document.clone(), |live| patch::merge(live, &step.document).unwrap());
    update(&writer, live, &mut new).unwrap();
    Some(new)
}

fn history(steps: &[Step]) -> Option<Value> {
    steps.iter().enumerate().fold(None, |live, (second, step)| take(step, second, live.as_ref()))
}

proptest! {
    #[test]
    fn nobody_owns_what_is_not_there_or_what_the_server_fills(steps in vec(steps(), 1..8)) {
        let Some(object) = history(&steps) else { return Ok(()) };
        let owned = ManagedFields::of(&object).unwrap().all_fields();
        prop_assert_eq!(owned.intersection(&system_fields()), FieldSet::default());
        let present = fields_of(&object).with_containers();
        let absent = owned.difference(&present).paths();
        let absent: Vec<String> = absent.iter().map(ToString::to_string).collect();
        prop_assert!(absent.is_empty(), "{absent:?} of {object:#}");
        prop_assert_eq!(&object["metadata"]["name"], "camera");
    }

    #[test]
    fn applying_twice_is_applying_once(steps in vec(steps(), 0..6), mut last in steps()) {
        last.apply = true;
        last.force = true;
        let live = history(&steps);
        let once = take(&last, 100, live.as_ref()).unwrap();
        prop_assert_eq!(take(&last, 200, Some(&once)).unwrap(), once.clone());
        let other = match last.api_version { ApiVersion::Core => ApiVersion::Group, _ => ApiVersion::Core };
        last.api_version = other;
        prop_assert_eq!(take(&last, 300, Some(&once)).unwrap(), once);
    }

    #[test]
    fn what_i_stop_applying_and_nobody_owns_vanishes(
        steps in vec(steps(), 0..6), mut first in steps(), rest in documents(),
    ) {
        first.apply = true;
        first.force = true;
        let before = take(&first, 100, history(&steps).as_ref()).unwrap();
        let second = Step { document: rest, ..first.clone() };
        let after = take(&second, 200, Some(&before)).unwrap();

        let owner = entries::FieldOwner::of(&writer(&first, 0), ManagedOperation::Apply);
        let given_up = ManagedFields::of(&before).unwrap().fields(&owner);
        let given_up = given_up.difference(&ManagedFields::of(&after).unwrap().all_fields().with_containers());
        let left = given_up.intersection(&fields_of(&after));
        let left: Vec<String> = left.paths().iter().map(ToString::to_string).collect();
        prop_assert!(left.is_empty(), "{left:?} of {after:#}");
    }

    #[test]
    fn what_i_apply_by_force_is_there_and_mine(steps in vec(steps(), 0..6), mut last in steps()) {
        last.apply = true;
        last.force = true;
        let after = take(&last, 100, history(&steps).as_ref()).unwrap();
        let config = scope::config_of(last.subresource, &last.document);
        let mut again = after.clone();
        walk::merge(&mut again, &config);
        prop_assert_eq!(&again, &after, "nothing that was applied is missing");
        let owner = entries::FieldOwner::of(&writer(&last, 0), ManagedOperation::Apply);
        prop_assert_eq!(ManagedFields::of(&after).unwrap().fields(&owner), fields_of(&config));
    }

    #[test]
    fn without_force_nobody_loses_a_field_to_an_apply(steps in vec(steps(), 1..6), mut last in steps()) {
        last.apply = true;
        last.force = false;
        let Some(before) = history(&steps) else { return Ok(()) };
        let after = take(&last, 100, Some(&before)).unwrap();
        let me = entries::FieldOwner::of(&writer(&last, 0), ManagedOperation::Apply);
        let kept = ManagedFields::of(&after).unwrap();
        let change = compare(&before, &after);
        for (owner, claim) in ManagedFields::of(&before).unwrap().0.into_iter().filter(|(owner, _)| *owner != me) {
            // An item of a list is removed as a whole, with the changes of other managers in it.
            prop_assert_eq!(kept.fields(&owner), claim.fields.difference(&change.removed));
            prop_assert_eq!(claim.fields.intersection(&change.written()), FieldSet::default());
        }
    }

    #[test]
    fn a_status_write_leaves_the_rest_and_a_main_write_the_status(steps in vec(steps(), 1..6), last in steps()) {
        let Some(before) = history(&steps) else { return Ok(()) };
        let after = take(&last, 100, Some(&before)).unwrap();
        let rest = |object: &Value| {
            let mut object = scope::body_of(object);
            object.as_object_mut().unwrap().remove("status");
            object
        };
        match last.subresource {
            Subresource::Main => prop_assert_eq!(after.get("status"), before.get("status")),
            Subresource::Status => prop_assert_eq!(rest(&after), rest(&before)),
        }
    }
}

/// Arbitrary input, made of the words that our code interprets.
fn foreign() -> impl Strategy<Value = Value> {
    let names = select(vec![
        "f:metadata",
        "f:port",
        "f:status",
        "f:conditions",
        "f:eSites",
        "k:{\"type\":\"Ready\"}",
        "v:\"s1\"",
        "v:{}",
        "i:1",
        ".",
        "",
        "fieldsV1",
        "manager",
        "operation",
        "subresource",
        "time",
        "apiVersion",
        "metadata",
        "labels",
        "finalizers",
        "ownerReferences",
        "status",
        "conditions",
        "type",
        "uid",
        "eSites",
        "port",
        "managedFields",
        "$patch",
        "$retainKeys",
        "$setElementOrder/conditions",
        "$deleteFromPrimitiveList/finalizers",
        "annotations",
        "kubectl.kubernetes.io/last-applied-configuration",
    ]);
    let words = select(vec![
        "Apply",
        "Update",
        "status",
        "v1",
        "delete",
        "replace",
        "merge",
        "x",
        "Ready",
        "{\"port\":1}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        words.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            btree_map(names.clone(), inner, 0..5).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
            )),
        ]
    })
}

fn claiming(mut object: Value, entries: Value) -> Value {
    object["metadata"]["managedFields"] = entries;
    object
}

fn entries_lists() -> impl Strategy<Value = Value> {
    let entry = (select(vec!["Apply", "Update", "Other"]), foreign()).prop_map(
        |(operation, fields)| json!({"manager": "a", "operation": operation, "apiVersion": "v1", "fieldsV1": fields}),
    );
    prop_oneof![foreign(), vec(entry, 0..4).prop_map(Value::Array)]
}

proptest! {
    #[test]
    fn foreign_entries_never_panic(
        stored in entries_lists(), sent in entries_lists(), old in documents(), step in steps(),
    ) {
        let old = claiming(old, stored);
        let mut new = claiming(step.document.clone(), sent);
        let writer = writer(&step, 1);
        update(&writer, Some(&old), &mut new).unwrap();
        prop_assert!(ManagedFields::of(&new).is_ok(), "a written value can be read");
        let _ = apply(&writer, Some(&old), &step.document, step.force);
        keep_old_if_same(&old, &mut new);
    }

    #[test]
    fn foreign_objects_never_panic(old in foreign(), sent in foreign(), step in steps()) {
        let writer = writer(&step, 1);
        let mut new = sent.clone();
        let _ = update(&writer, Some(&old), &mut new);
        let _ = apply(&writer, Some(&old), &sent, step.force);
        let _ = apply(&writer, None, &sent, step.force);
        keep_old_if_same(&old, &mut new);
        let _ = FieldSet::parse(&sent);
    }

    #[test]
    fn foreign_patches_never_panic_and_patching_twice_is_patching_once(object in foreign(), sent in foreign()) {
        for patched in [patch::merge, patch::strategic] {
            if let Ok(once) = patched(&object, &sent) {
                prop_assert_eq!(patched(&once, &sent), Ok(once));
            }
        }
    }
}
