//! Events about our own objects: which condition changes create one, their names, and which are dropped.
//!
//! Pure. An event's name follows from the object, the type and the reason, so a repeated occurrence, seen by
//! any replica, is counted in one event. `surplus` keeps the number of events bounded for every writer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::conditions::READY;
use crate::kinds::{Event, EventSource, EventType, NAMESPACE, ObjectReference};
use crate::meta::{Condition, ObjectMeta};
use crate::object::Object;
use crate::{ApiVersion, ConditionStatus, Time};

/// The time after its last write at which an event is dropped. Kubernetes' default.
pub const TTL_SECONDS: u64 = 3_600;
/// The maximum number of events about one object; the newest are kept.
pub const PER_OBJECT_MAX: usize = 32;
/// The maximum number of events of one source; the newest are kept. Below the total, so that one noisy client
/// leaves space for other sources.
pub const PER_SOURCE_MAX: usize = 2_048;
/// The maximum number of events; the newest are kept.
pub const TOTAL_MAX: usize = 4_096;
/// Above this number events of clients are refused until the surplus is dropped. Twice `TOTAL_MAX`, so only a
/// client that writes faster than the store deletes reaches it.
pub const HARD_MAX: usize = 8_192;

// Kubernetes' bound on the note of an event; messages of conditions may be longer.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// An occurrence concerning an object.
#[derive(Clone, PartialEq, Debug)]
pub struct Occurrence {
    pub involved: ObjectReference,
    pub kind: EventType,
    pub reason: String,
    pub message: String,
    /// The action or finding: the type of the condition.
    pub action: String,
}

impl Occurrence {
    /// The name of its event: the object's name, and a hash of the values that identify the occurrence.
    pub fn event_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.involved.kind, &self.involved.uid, self.kind, &self.reason, &self.action).hash(&mut hasher);
        // The longest name of an object, with the suffix, must be a valid name again.
        let name: String = self.involved.name.chars().take(200).collect();
        format!("{}.{:016x}", name.trim_end_matches(['.', '-']), hasher.finish())
    }

    /// Returns a new event that counts `count` occurrences.
    pub fn event(&self, source: &str, instance: &str, (first, last): (Time, Time), count: i64) -> Event {
        Event {
            metadata: ObjectMeta { namespace: NAMESPACE.into(), ..ObjectMeta::named(self.event_name()) },
            involved_object: self.involved.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            source: EventSource { component: source.into(), host: String::new() },
            first_timestamp: Some(first),
            last_timestamp: Some(last),
            count: Some(count),
            kind: self.kind.as_str().into(),
            action: self.action.clone(),
            reporting_component: source.into(),
            reporting_instance: instance.into(),
            ..Event::default()
        }
    }
}

/// Returns the condition changes between two states of one object that create an event. A condition that
/// appears creates one when it does not hold; `Ready`, the summary, creates one only when it begins to hold.
pub fn transitions(old: &Object, new: &Object) -> Vec<Occurrence> {
    let changed = new.status().conditions.iter().filter(|condition| {
        let before = old.status().condition(&condition.kind);
        let is_same = before
            .is_some_and(|before| (before.status, &before.reason) == (condition.status, &condition.reason));
        let holds = condition.status == ConditionStatus::True;
        let began = before.is_none_or(|before| before.status != ConditionStatus::True);
        match condition.kind == READY {
            true => holds && began,
            // The first connection of a gateway creates an event; resolved references do not.
            false => {
                !is_same && (before.is_some() || !holds || condition.kind == crate::conditions::CONNECTED)
            }
        }
    });
    changed.map(|condition| occurrence(new, condition)).collect()
}

fn occurrence(object: &Object, condition: &Condition) -> Occurrence {
    let meta = object.metadata();
    let kind = match condition.status {
        // A pending condition is not a warning yet.
        ConditionStatus::False if condition.reason.ends_with("Pending") => EventType::Normal,
        ConditionStatus::False => EventType::Warning,
        ConditionStatus::True | ConditionStatus::Unknown => EventType::Normal,
    };
    let message = match condition.message.as_str() {
        "" => format!("{} is {}", condition.kind, condition.status.as_str()),
        message => message.to_owned(),
    };
    Occurrence {
        involved: ObjectReference {
            kind: object.kind().name().into(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            api_version: ApiVersion::Group.as_str().into(),
            ..ObjectReference::default()
        },
        kind,
        reason: condition.reason.clone(),
        message: cut(message),
        action: condition.kind.clone(),
    }
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX - '…'.len_utf8();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The values that decide whether an event is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptEvent {
    /// The object it is about.
    pub object: (String, String, String),
    /// The component that wrote it.
    pub source: String,
    /// When it was last written.
    pub written: Time,
    /// The revision that wrote it: orders writes within one second.
    pub revision: u64,
}

impl KeptEvent {
    pub fn of(event: &Event, written: Time, revision: u64) -> KeptEvent {
        let involved = &event.involved_object;
        let source = match event.source.component.as_str() {
            "" => &event.reporting_component,
            _ => &event.source.component,
        };
        KeptEvent {
            object: (involved.kind.clone(), involved.name.clone(), involved.uid.clone()),
            source: source.clone(),
            written,
            revision,
        }
    }
}

/// Returns the names of the events to drop now: the expired ones, then the oldest beyond the maximum of each
/// object, of each source and of all events.
pub fn surplus(events: &BTreeMap<String, KeptEvent>, now: Time) -> BTreeSet<String> {
    let is_over = |kept: &KeptEvent| now.since(kept.written) >= TTL_SECONDS;
    let mut dropped: BTreeSet<String> =
        events.iter().filter(|(_, kept)| is_over(kept)).map(|(name, _)| name.clone()).collect();
    // Newest first: events after the bound are surplus.
    let mut rest: Vec<(&String, &KeptEvent)> = events.iter().filter(|(_, kept)| !is_over(kept)).collect();
    rest.sort_by_key(|(_, kept)| std::cmp::Reverse((kept.written, kept.revision)));
    let (mut objects, mut sources) = (HashMap::new(), HashMap::new());
    let mut total = 0;
    for (name, kept) in rest {
        let of_object = objects.entry(&kept.object).or_insert(0usize);
        let of_source = sources.entry(&kept.source).or_insert(0usize);
        if *of_object >= PER_OBJECT_MAX || *of_source >= PER_SOURCE_MAX || total >= TOTAL_MAX {
            dropped.insert(name.clone());
        } else {
            (*of_object, *of_source, total) = (*of_object + 1, *of_source + 1, total + 1);
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::set_condition;
    use crate::{EGateway, Kind};

    fn gateway(conditions: &[(&str, bool, &str)]) -> Object {
        let mut gateway = EGateway { metadata: ObjectMeta::named("oslo"), ..EGateway::default() };
        gateway.metadata.uid = "u".into();
        for (kind, status, reason) in conditions {
            let conditions = &mut gateway.status.conditions;
            set_condition(conditions, kind, (*status).into(), reason, "", Time::from_second(1), 1);
        }
        gateway.into()
    }

    #[test]
    fn a_change_of_a_condition_is_an_event_and_a_repetition_is_none() {
        let check = |what: &str,
                     old: &[(&str, bool, &str)],
                     new: &[(&str, bool, &str)],
                     expected: &[(EventType, &str)]| {
            let found = transitions(&gateway(old), &gateway(new));
            let found: Vec<(EventType, &str)> =
                found.iter().map(|one| (one.kind, one.reason.as_str())).collect();
            assert_eq!(found, expected, "{what}");
        };
        use EventType::*;
        let away = [("Connected", false, "Disconnected")];
        let here = [("Connected", true, "Connected")];
        check("it goes", &here, &away, &[(Warning, "Disconnected")]);
        check("it comes back", &away, &here, &[(Normal, "Connected")]);
        check("it comes for the first time", &[], &here, &[(Normal, "Connected")]);
        check("nothing changes", &here, &here, &[]);
        check("found resolved at first", &[], &[("SiteResolved", true, "SiteFound")], &[]);
        let missing = [("SiteResolved", false, "SiteMissing")];
        check("found missing at first", &[], &missing, &[(Warning, "SiteMissing")]);
        check("for another reason", &missing, &[("SiteResolved", false, "Other")], &[(Warning, "Other")]);
        let ready = [("Ready", true, "AllResolved")];
        check("ready at first", &[], &ready, &[(Normal, "AllResolved")]);
        check("ready no more is told by the cause", &ready, &[("Ready", false, "SiteMissing")], &[]);
        check("ready for another reason", &ready, &[("Ready", true, "Other")], &[]);
    }

    #[test]
    fn the_same_thing_has_the_same_name_and_the_name_is_one() {
        let one = transitions(&gateway(&[]), &gateway(&[("Connected", true, "Connected")])).remove(0);
        assert_eq!(one.event_name(), one.clone().event_name());
        let mut other = one.clone();
        other.message = "in other words".into();
        assert_eq!(other.event_name(), one.event_name(), "words do not make two of it");
        other.involved.uid = "another".into();
        assert_ne!(other.event_name(), one.event_name(), "another object of that name");
        other.involved.name = format!("{}-x", "a".repeat(199));
        let event: Object =
            other.event("causeway-cloud", "a", (Time::from_second(1), Time::from_second(2)), 3).into();
        assert_eq!(event.kind(), Kind::Event);
        assert_eq!(event.validate(None), Vec::new());
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        assert_eq!(cut("short".into()), "short");
        let long = cut("ä".repeat(1_000));
        assert!(long.len() <= MESSAGE_BYTES_MAX && long.ends_with('…'), "{}", long.len());
    }

    fn kept(object: &str, source: &str, written: i64) -> KeptEvent {
        KeptEvent {
            object: ("EGateway".into(), object.into(), String::new()),
            source: source.into(),
            written: Time::from_second(written),
            revision: 0,
        }
    }

    #[test]
    fn of_one_second_the_last_written_stay() {
        let event = |number: u64| {
            // Names in the reverse order of the writes.
            (format!("{:03}", 999 - number), KeptEvent { revision: number, ..kept("a", "s", 5) })
        };
        let events: BTreeMap<String, KeptEvent> = (0..100).map(event).collect();
        let gone = surplus(&events, Time::from_second(6));
        assert_eq!(gone.len(), 100 - PER_OBJECT_MAX);
        assert!(gone.contains("999") && !gone.contains("900"), "{gone:?}");
    }

    #[test]
    fn what_is_old_goes() {
        let events: BTreeMap<String, KeptEvent> =
            [("old".into(), kept("a", "s", 0)), ("new".into(), kept("a", "s", 10))].into();
        let gone = |now: i64| surplus(&events, Time::from_second(now)).into_iter().collect::<Vec<_>>();
        assert_eq!(gone(3_599), Vec::<String>::new());
        assert_eq!(gone(3_600), ["old"]);
        assert_eq!(gone(3_610), ["new", "old"]);
    }

    #[test]
    fn a_noisy_object_and_a_noisy_source_push_out_only_their_own() {
        let mut events = BTreeMap::new();
        let mut put = |name: String, kept: KeptEvent| drop(events.insert(name, kept));
        put("quiet".into(), kept("quiet", "controller", 1));
        for number in 0..100 {
            put(format!("object-{number:03}"), kept("noisy", "controller", 10 + number));
        }
        for number in 0..3_000 {
            put(format!("source-{number:04}"), kept(&format!("o{number}"), "noisy", 200 + number));
        }
        let gone = surplus(&events, Time::from_second(3_300));
        assert!(!gone.contains("quiet"));
        let of = |word: &str| gone.iter().filter(|name| name.starts_with(word)).collect::<Vec<_>>();
        assert_eq!(of("object-").len(), 100 - PER_OBJECT_MAX);
        assert!(of("object-").contains(&&"object-000".to_string()), "the oldest go");
        assert!(!of("object-").contains(&&"object-099".to_string()));
        assert_eq!(of("source-").len(), 3_000 - PER_SOURCE_MAX);
    }

    #[test]
    fn all_together_are_bounded() {
        let event = |number: usize| {
            (
                format!("{number:05}"),
                kept(&format!("o{number}"), &format!("s{}", number % 5), number as i64 / 10),
            )
        };
        let events: BTreeMap<String, KeptEvent> = (0..10_000).map(event).collect();
        let gone = surplus(&events, Time::from_second(1_000));
        assert_eq!(events.len() - gone.len(), TOTAL_MAX);
        assert!(gone.contains("00000") && !gone.contains("09999"));
    }
}
