//! Garbage collection of objects whose owners are deleted, by the rules of Kubernetes.
//!
//! Pure. `finalizers` is called when a deletion is requested, `owner` for an object that waits for its
//! dependents, and `dependent` for an object that has owners. The collector reads the objects and executes
//! the result.

use crate::meta::{ObjectMeta, OwnerReference};
use crate::{ApiVersion, Kind};

/// Keeps an object that is being deleted until its dependents have lost their reference to it.
pub const ORPHAN: &str = "orphan";
/// Keeps an object that is being deleted until the dependents that block it are gone.
pub const FOREGROUND: &str = "foregroundDeletion";

/// The treatment of dependents when their owner is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Propagation {
    /// Dependents stay, without the reference.
    Orphan,
    /// The owner is deleted at once, dependents afterwards.
    Background,
    /// Dependents are deleted first.
    Foreground,
}

impl Propagation {
    pub const ALL: [Propagation; 3] = [Propagation::Background, Propagation::Foreground, Propagation::Orphan];

    pub const fn as_str(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }

    pub fn parse(text: &str) -> Option<Propagation> {
        Propagation::ALL.into_iter().find(|policy| policy.as_str() == text)
    }

    const fn finalizer(self) -> Option<&'static str> {
        match self {
            Propagation::Orphan => Some(ORPHAN),
            Propagation::Background => None,
            Propagation::Foreground => Some(FOREGROUND),
        }
    }
}

/// Returns the finalizers of an object after its deletion was requested. A given policy decides; without one
/// the object's own finalizers do, and without those the deletion is in the background.
pub fn finalizers(existing: &[String], asked: Option<Propagation>) -> Vec<String> {
    let Some(policy) = asked else { return existing.to_vec() };
    let others = existing.iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).cloned();
    others.chain(policy.finalizer().map(str::to_owned)).collect()
}

/// Tells whether the object waits until its dependents are orphaned or deleted.
pub fn waits(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && (has(meta, ORPHAN) || has(meta, FOREGROUND))
}

/// Tells whether the object waits until its dependents are deleted.
pub fn waits_in_foreground(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && has(meta, FOREGROUND)
}

fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().any(|name| name == finalizer)
}

/// Returns the kind of a reference, if this server can look up its object: a served kind, and cluster-scoped,
/// because our objects are.
pub fn owner_kind(reference: &OwnerReference) -> Option<Kind> {
    let version = ApiVersion::parse(&reference.api_version)?;
    let kind = Kind::SERVED.into_iter().find(|kind| kind.name() == reference.kind)?;
    (kind.versions().contains(&version) && !kind.is_namespaced()).then_some(kind)
}

/// The state of the owner that a reference names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerState {
    /// Its kind is not served here. It cannot be assumed to be deleted.
    Unknown,
    /// There is no object of that name, or one with another UID.
    Absent,
    Present,
    /// It is being deleted in the foreground.
    WaitsForDependents,
}

/// The state of an owner; `found` is the object that has its name.
pub fn owner_state(reference: &OwnerReference, found: Option<&ObjectMeta>) -> OwnerState {
    match found {
        Some(owner) if owner.uid != reference.uid => OwnerState::Absent,
        Some(owner) if waits_in_foreground(owner) => OwnerState::WaitsForDependents,
        Some(_) => OwnerState::Present,
        None => OwnerState::Absent,
    }
}

/// The state of an object's own dependents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dependents {
    None,
    Some,
    /// Some wait in the foreground for other objects, and those transitively for the object itself.
    InCircle,
}

/// The action for an object that has owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DependentStep {
    Keep,
    /// Remove the references to these UIDs: another owner keeps the object.
    Release(Vec<String>),
    /// Delete it. `unblock`: first clear blockOwnerDeletion in its references, because the owners wait in a
    /// circle.
    Delete {
        policy: Propagation,
        unblock: bool,
    },
}

/// Decides about an object that has owners. `owners` has one state per reference, in their order.
pub fn dependent(meta: &ObjectMeta, owners: &[OwnerState], own: Dependents) -> DependentStep {
    let is_going = meta.deletion_timestamp.is_some();
    if owners.is_empty() || is_going || owners.contains(&OwnerState::Unknown) {
        return DependentStep::Keep;
    }
    if owners.contains(&OwnerState::Present) {
        let lost =
            meta.owner_references.iter().zip(owners).filter(|(_, state)| **state != OwnerState::Present);
        let lost: Vec<String> = lost.map(|(reference, _)| reference.uid.clone()).collect();
        return if lost.is_empty() { DependentStep::Keep } else { DependentStep::Release(lost) };
    }
    let policy = if owners.contains(&OwnerState::WaitsForDependents) && own != Dependents::None {
        Propagation::Foreground
    } else if has(meta, ORPHAN) {
        Propagation::Orphan
    } else if has(meta, FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let unblock = policy == Propagation::Foreground && own == Dependents::InCircle;
    DependentStep::Delete { policy, unblock }
}

/// The action for an object that waits for its dependents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnerStep {
    Nothing,
    /// Remove the references of all dependents, then this finalizer.
    Orphan,
    /// Nothing blocks it any more: remove the finalizer.
    Finish,
    /// Wait for the dependents that block it.
    Wait,
    /// It waits for dependents that wait for it: clear blockOwnerDeletion in its own references.
    Unblock,
}

/// Decides about an object that may wait for its dependents, which are given by their references.
pub fn owner<'a>(
    meta: &ObjectMeta,
    dependents: impl Iterator<Item = &'a [OwnerReference]>,
    in_circle: bool,
) -> OwnerStep {
    if !waits(meta) {
        return OwnerStep::Nothing;
    }
    if has(meta, ORPHAN) {
        return OwnerStep::Orphan;
    }
    let blocks = |reference: &OwnerReference| {
        reference.uid == meta.uid && reference.block_owner_deletion == Some(true)
    };
    let mut dependents = dependents;
    if !dependents.any(|references| references.iter().any(blocks)) {
        return OwnerStep::Finish;
    }
    let blocks_others = meta.owner_references.iter().any(|owner| owner.block_owner_deletion == Some(true));
    if in_circle && blocks_others { OwnerStep::Unblock } else { OwnerStep::Wait }
}

#[cfg(test)]
mod tests {
    use super::OwnerState::*;
    use super::*;
    use crate::Time;

    fn object(finalizers: &[&str], owners: &[&str], going: bool) -> ObjectMeta {
        let mut meta = ObjectMeta::named("a");
        meta.uid = "own".into();
        meta.finalizers = finalizers.iter().map(ToString::to_string).collect();
        meta.deletion_timestamp = going.then(|| Time::from_second(1));
        meta.owner_references = owners.iter().map(|uid| reference(uid, None)).collect();
        meta
    }

    fn reference(uid: &str, block: Option<bool>) -> OwnerReference {
        OwnerReference {
            api_version: "causeway.io/v1".into(),
            kind: "ESite".into(),
            name: uid.into(),
            uid: uid.into(),
            controller: None,
            block_owner_deletion: block,
        }
    }

    #[test]
    fn a_policy_that_is_given_replaces_the_one_in_the_finalizers() {
        let check = |existing: &[&str], asked: Option<Propagation>, expected: &[&str]| {
            let existing: Vec<String> = existing.iter().map(ToString::to_string).collect();
            assert_eq!(finalizers(&existing, asked), expected, "{existing:?} {asked:?}");
        };
        check(&[], None, &[]);
        check(&["a/b"], None, &["a/b"]);
        check(&["orphan"], None, &["orphan"]);
        check(&[], Some(Propagation::Orphan), &["orphan"]);
        check(&["a/b"], Some(Propagation::Foreground), &["a/b", "foregroundDeletion"]);
        check(&["orphan", "a/b"], Some(Propagation::Background), &["a/b"]);
        check(&["foregroundDeletion"], Some(Propagation::Orphan), &["orphan"]);
        check(&["foregroundDeletion"], Some(Propagation::Foreground), &["foregroundDeletion"]);
    }

    #[test]
    fn an_object_goes_with_its_last_owner_and_stays_with_any_other() {
        use Propagation::*;
        let delete = |policy| DependentStep::Delete { policy, unblock: false };
        let release = |uids: &[&str]| DependentStep::Release(uids.iter().map(ToString::to_string).collect());
        let check = |what: &str, owners: &[OwnerState], own: Dependents, expected: DependentStep| {
            let uids = &["x", "y", "z"][..owners.len()];
            assert_eq!(dependent(&object(&[], uids, false), owners, own), expected, "{what}");
        };
        check("no owners", &[], Dependents::None, DependentStep::Keep);
        check("its owner is there", &[Present], Dependents::None, DependentStep::Keep);
        check("its owner is gone", &[Absent], Dependents::None, delete(Background));
        check("all its owners are gone", &[Absent, Absent], Dependents::Some, delete(Background));
        check("one of two is gone", &[Absent, Present], Dependents::None, release(&["x"]));
        check(
            "one of three waits",
            &[Present, WaitsForDependents, Absent],
            Dependents::None,
            release(&["y", "z"]),
        );
        check("its owner waits", &[WaitsForDependents], Dependents::None, delete(Background));
        check(
            "its owner waits and it has dependents",
            &[WaitsForDependents],
            Dependents::Some,
            delete(Foreground),
        );
        check("an owner of a kind that is not served", &[Unknown], Dependents::None, DependentStep::Keep);
        check("the same beside one that is gone", &[Absent, Unknown], Dependents::None, DependentStep::Keep);
        check(
            "owners wait for each other",
            &[WaitsForDependents],
            Dependents::InCircle,
            DependentStep::Delete { policy: Foreground, unblock: true },
        );
        assert_eq!(
            dependent(&object(&[], &["x"], true), &[Absent], Dependents::None),
            DependentStep::Keep,
            "it goes already"
        );
        assert_eq!(
            dependent(&object(&["orphan"], &["x"], false), &[Absent], Dependents::None),
            delete(Orphan)
        );
    }

    #[test]
    fn an_owner_is_the_object_with_its_name_and_its_uid() {
        let found = object(&[], &[], false);
        assert_eq!(owner_state(&reference("own", None), Some(&found)), Present);
        assert_eq!(owner_state(&reference("another", None), Some(&found)), Absent);
        assert_eq!(owner_state(&reference("own", None), None), Absent);
        let waiting = object(&[FOREGROUND], &[], true);
        assert_eq!(owner_state(&reference("own", None), Some(&waiting)), WaitsForDependents);
        let kind = |version: &str, kind: &str| {
            let reference = OwnerReference {
                api_version: version.into(),
                kind: kind.into(),
                ..OwnerReference::default()
            };
            owner_kind(&reference)
        };
        assert_eq!(kind("causeway.io/v1", "ESite"), Some(Kind::ESite));
        assert_eq!(kind("v1", "ESite"), Some(Kind::ESite));
        assert_eq!(kind("v1", "Namespace"), Some(Kind::Namespace));
        assert_eq!(kind("apps/v1", "Deployment"), None);
        assert_eq!(kind("events.k8s.io/v1", "ESite"), None);
        assert_eq!(kind("v1", "Event"), None, "our objects are in no namespace");
    }

    #[test]
    fn an_owner_waits_only_for_those_that_block_it() {
        let blocking = [reference("other", Some(true)), reference("own", Some(true))];
        let idle = [reference("own", Some(false)), reference("other", Some(true))];
        let step = |finalizers: &[&str], going: bool, dependents: &[&[OwnerReference]]| {
            owner(&object(finalizers, &[], going), dependents.iter().copied(), false)
        };
        assert_eq!(step(&[FOREGROUND], true, &[&blocking]), OwnerStep::Wait);
        assert_eq!(step(&[FOREGROUND], true, &[&idle]), OwnerStep::Finish);
        assert_eq!(step(&[FOREGROUND], true, &[]), OwnerStep::Finish);
        assert_eq!(step(&[FOREGROUND], false, &[]), OwnerStep::Nothing, "nobody deleted it");
        assert_eq!(step(&[ORPHAN], true, &[&blocking]), OwnerStep::Orphan);
        assert_eq!(step(&["a/b"], true, &[&blocking]), OwnerStep::Nothing);
        let mut circle = object(&[FOREGROUND], &["other"], true);
        let dependents: [&[OwnerReference]; 1] = [&blocking];
        assert_eq!(owner(&circle, dependents.into_iter(), true), OwnerStep::Wait, "it blocks nothing");
        circle.owner_references[0].block_owner_deletion = Some(true);
        assert_eq!(owner(&circle, dependents.into_iter(), true), OwnerStep::Unblock);
        assert_eq!(owner(&circle, dependents.into_iter(), false), OwnerStep::Wait, "a chain is no circle");
    }
}
