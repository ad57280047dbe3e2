//! Any sequence of updates ends with the netmap of the sender; an update that does not fit is refused.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

fn netmap(revision: u64, entries: &[(&str, &str)]) -> Netmap {
    let entries =
        entries.iter().map(|(key, value)| (EntryKey::new(*key), Bytes::from(value.to_string()))).collect();
    Netmap::build(Generation { epoch: 1, revision }, entries, None).unwrap()
}

/// Encodes, decodes and applies an update.
fn send(held: Option<&Netmap>, update: &NetmapUpdateData) -> Result<Netmap, ApplyError> {
    Netmap::apply(held, &NetmapUpdateData::decode(&update.encode()).unwrap())
}

proptest! {
    #[test]
    fn any_sequence_of_updates_ends_with_equal_netmaps(
        states in vec((btree_map("[a-d]/[a-e]{0,2}", vec(any::<u8>(), 0..40), 0..12), any::<bool>()), 1..12)
    ) {
        let (mut sent, mut held): (Option<Netmap>, Option<Netmap>) = (None, None);
        for (revision, (entries, whole)) in states.into_iter().enumerate() {
            let entries = entries.into_iter().map(|(key, value)| (EntryKey::new(key), value.into())).collect();
            let generation = Generation { epoch: 1, revision: revision as u64 };
            let next = Netmap::build(generation, entries, sent.as_ref()).unwrap();
            let update = next.update_from(sent.as_ref().filter(|_| !whole));
            held = Some(send(held.as_ref(), &update).unwrap());
            prop_assert_eq!(held.as_ref(), Some(&next));
            sent = Some(next);
        }
    }

    #[test]
    fn a_change_of_something_else_is_a_wrong_base_or_a_wrong_digest_never_a_wrong_netmap(
        states in vec(btree_map("[a-c]", "[x-z]", 0..4), 3)
    ) {
        let [one, two, three] = [0, 1, 2].map(|at: usize| {
            let entries: Vec<_> = states[at].iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            netmap(at as u64, &entries)
        });
        match send(Some(&one), &three.update_from(Some(&two))) {
            Ok(made) => prop_assert_eq!(made, three),
            Err(error) => {
                prop_assert_eq!(error, ApplyError::WrongBase);
                prop_assert_ne!(one.digest(), two.digest());
            }
        }
    }
}

#[test]
fn one_changed_entry_is_all_that_travels() {
    let old = netmap(1, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let new = netmap(2, &[("a", "1"), ("b", "2"), ("d", "1")]);
    let update = new.update_from(Some(&old));
    let set: Vec<&str> = update.set.iter().map(|(key, _)| key.as_str()).collect();
    let unset: Vec<&str> = update.unset.iter().map(EntryKey::as_str).collect();
    assert_eq!((set, unset), (vec!["b", "d"], vec!["c"]));
    assert_eq!(update.base, Some(old.stamp()));
}

#[test]
fn a_generation_does_not_go_back_unless_the_epoch_rose() {
    let held = netmap(10, &[("a", "1")]);
    let offer = |epoch, revision, value: &str| {
        let next = netmap(0, &[("a", value)]).at(Generation { epoch, revision });
        send(Some(&held), &next.update_from(None)).map(|netmap| netmap.generation().epoch)
    };
    let backwards = |result: Result<u64, ApplyError>| matches!(result, Err(ApplyError::Backwards { .. }));
    assert!(backwards(offer(1, 9, "2")));
    assert!(backwards(offer(1, 9, "1")), "also when nothing would change");
    assert!(backwards(offer(1, 10, "2")), "two states have one name");
    assert!(backwards(offer(0, 99, "2")));
    assert_eq!(offer(1, 10, "1"), Ok(1), "said twice");
    assert_eq!(offer(1, 11, "2"), Ok(1));
    assert_eq!(offer(2, 3, "2"), Ok(2));
}

#[test]
fn turns_order_the_netmaps_of_one_generation() {
    let held = netmap(10, &[("a", "1")]).at_turn(4);
    let offer = |revision: u64, turn: u64, value: &str| {
        let next = netmap(revision, &[("a", value)]).at_turn(turn);
        send(Some(&held), &next.update_from(Some(&held))).map(|netmap| netmap.stamp().turn)
    };
    let backwards = |result: Result<u64, ApplyError>| matches!(result, Err(ApplyError::Backwards { .. }));
    assert!(backwards(offer(10, 3, "2")));
    assert!(backwards(offer(10, 4, "2")), "two states have one name");
    assert!(backwards(offer(9, 5, "2")), "the revision comes before the turn");
    assert_eq!(offer(10, 5, "2"), Ok(5));
    assert_eq!(offer(11, 0, "2"), Ok(0));
}

#[test]
fn a_wrong_digest_makes_no_netmap() {
    let mut update = netmap(2, &[("a", "1")]).update_from(None);
    update.set[0].1 = Bytes::from_static(b"2");
    assert_eq!(Netmap::apply(None, &update), Err(ApplyError::DigestMismatch));
}

#[test]
fn a_change_without_anything_to_change_asks_for_the_whole() {
    let (old, new) = (netmap(1, &[("a", "1")]), netmap(2, &[("a", "2")]));
    assert_eq!(send(None, &new.update_from(Some(&old))), Err(ApplyError::WrongBase));
    // The base stays valid when it was confirmed under a later generation.
    let held = old.at(Generation { epoch: 1, revision: 1 });
    assert_eq!(send(Some(&held), &new.update_from(Some(&old))), Ok(new));
}

#[test]
fn a_key_stands_once() {
    let twice = vec![(EntryKey::new("a"), Bytes::new()), (EntryKey::new("a"), Bytes::new())];
    let built = Netmap::build(Generation::default(), twice, None);
    assert_eq!(built.unwrap_err(), BuildError::Twice(EntryKey::new("a")));
}
