//! FieldsV1 from foreign managedFields: two documents are two sets.
//!
//! Invariants: a printed set parses as the same set; sets obey the algebra of sets; size and depth are
//! bounded.
#![no_main]

use causeway_api::ownership::{DEPTH_MAX, ELEMENTS_MAX, FieldSet};
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Some(documents) = json::documents(data) else { return };
    let mut sets = Vec::new();
    for document in documents.iter().take(2) {
        match FieldSet::parse(document) {
            Ok(set) => sets.push(set),
            Err(error) => assert_short(&error.to_string(), 1024),
        }
    }
    sets.iter().for_each(check);
    if let [a, b] = &sets[..] {
        check_pair(a, b);
    }
});

fn check(set: &FieldSet) {
    assert!(set.size() <= ELEMENTS_MAX);
    assert_eq!(FieldSet::parse(&set.print()).as_ref(), Ok(set), "a set reads what it prints");
    let paths = set.paths();
    let mut rebuilt = FieldSet::default();
    for path in &paths {
        assert!(path.0.len() <= DEPTH_MAX);
        assert!(set.contains(&path.0), "a set contains its paths");
        let _ = path.to_string();
        rebuilt.insert(&path.0);
    }
    assert_eq!(&rebuilt, set, "a set is its paths");
}

fn check_pair(a: &FieldSet, b: &FieldSet) {
    let (union, both, only_a) = (a.union(b), a.intersection(b), a.difference(b));
    [&union, &both, &only_a]
        .into_iter()
        .for_each(|set| assert_eq!(FieldSet::parse(&set.print()).as_ref(), Ok(set)));
    assert_eq!(union, b.union(a));
    assert_eq!(both, b.intersection(a));
    assert_eq!(&only_a.union(&both), a);
    assert_eq!(only_a.intersection(b), FieldSet::default());
    assert_eq!(only_a.union(b), union);
    assert_eq!(a.difference(a), FieldSet::default());
    assert_eq!(&a.union(a), a);
}
