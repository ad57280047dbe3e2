//! Sums up the subscriptions of an edge for the cloud. Pure.
//!
//! Input: the subscriptions. Output: their totals, since when the copy is behind, and as many of them as fit into an answer.

use causeway_api::management::{EdgeCacheFacts, EdgeCacheSubscription};

/// Subscriptions that are listed. With long selectors and refusals they take less than half of the largest answer of a gateway.
const SUBSCRIPTIONS_MAX: usize = 50;
/// Characters of a selector or a refusal.
const TEXT_MAX: usize = 200;

/// Adds the subscriptions to the totals; those that are behind are listed first.
pub fn summarize(totals: EdgeCacheFacts, mut subscriptions: Vec<EdgeCacheSubscription>) -> EdgeCacheFacts {
    subscriptions.sort_by(|one, other| {
        (one.live, &one.resource, &one.namespace).cmp(&(other.live, &other.resource, &other.namespace))
    });
    let behind: Vec<&EdgeCacheSubscription> = subscriptions.iter().filter(|one| !one.live).collect();
    let never_complete = behind.iter().any(|one| one.last_sync.is_none());
    let behind_since = behind.iter().filter_map(|one| one.last_sync).min().filter(|_| !never_complete);
    EdgeCacheFacts {
        resources: subscriptions.len(),
        behind: behind.len(),
        behind_since,
        objects: subscriptions.iter().map(|one| one.objects).sum(),
        bytes: subscriptions.iter().map(|one| one.bytes).sum(),
        watchers: subscriptions.iter().map(|one| one.watchers).sum(),
        subscriptions: subscriptions.into_iter().take(SUBSCRIPTIONS_MAX).collect(),
        ..totals
    }
}

/// A text of a client of the edge, cut to what an answer has room for. Letters that JSON writes as several bytes are replaced.
pub fn shortened(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() || matches!(letter, '"' | '\\') { '?' } else { letter };
    text.chars().map(plain).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use causeway_api::Time;

    use super::*;

    fn subscription(resource: &str, live: bool, last_sync: Option<i64>) -> EdgeCacheSubscription {
        EdgeCacheSubscription {
            resource: resource.into(),
            live,
            last_sync: last_sync.map(Time::from_second),
            objects: 2,
            bytes: 10,
            watchers: 1,
            ..EdgeCacheSubscription::default()
        }
    }

    #[test]
    fn a_copy_is_behind_since_the_oldest_word_about_a_resource_that_is_not_followed() {
        let check = |subscriptions: Vec<EdgeCacheSubscription>, expected: (usize, Option<i64>)| {
            let facts = summarize(EdgeCacheFacts::default(), subscriptions);
            assert_eq!((facts.behind, facts.behind_since.map(Time::as_second)), expected);
        };
        check(vec![], (0, None));
        check(vec![subscription("v1/pods", true, Some(90))], (0, None));
        let behind = [subscription("v1/nodes", false, Some(70)), subscription("v1/pods", false, Some(60))];
        check([&behind[..], &[subscription("v1/secrets", true, Some(5))]].concat(), (2, Some(60)));
        check([&behind[..], &[subscription("v1/secrets", false, None)]].concat(), (3, None));
    }

    #[test]
    fn totals_count_all_and_the_list_begins_with_what_is_behind() {
        let mut many: Vec<EdgeCacheSubscription> =
            (0..150).map(|number| subscription(&format!("v1/r{number:03}"), true, Some(1))).collect();
        many.push(subscription("v1/z", false, Some(1)));
        let facts = summarize(EdgeCacheFacts { pending_writes: 7, ..EdgeCacheFacts::default() }, many);
        assert_eq!((facts.resources, facts.objects, facts.bytes, facts.watchers), (151, 302, 1510, 151));
        assert_eq!((facts.pending_writes, facts.subscriptions.len()), (7, SUBSCRIPTIONS_MAX));
        assert_eq!(
            (&*facts.subscriptions[0].resource, &*facts.subscriptions[1].resource),
            ("v1/z", "v1/r000")
        );
    }

    /// Characters of four bytes in every text of every subscription.
    #[test]
    fn the_largest_answer_leaves_room_to_the_other_facts_of_a_gateway() {
        assert_eq!(shortened("a\u{1}\"\\b"), "a???b");
        let long = shortened(&"\u{1f600}".repeat(10_000));
        let one = EdgeCacheSubscription {
            resource: "g".repeat(253 * 3),
            namespace: "n".repeat(63),
            selector: long.clone(),
            refused: Some(long),
            ..EdgeCacheSubscription::default()
        };
        let facts = summarize(EdgeCacheFacts::default(), vec![one; 1_000]);
        assert!(serde_json::to_vec(&facts).unwrap().len() < 128 * 1024);
    }
}
