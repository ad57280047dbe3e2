//! The share of a client in a bounded queue. Pure.

use std::collections::HashMap;
use std::hash::Hash;

/// Returns the place in a full queue that is given up for a further entry of `client`: the newest of the client that has
/// most. None: no client has two entries more than this one, so that the new entry is refused.
pub fn crowded_place<K: Eq + Hash>(queue: impl Iterator<Item = K>, client: K) -> Option<usize> {
    let mut clients: HashMap<K, (usize, usize)> = HashMap::new();
    for (place, owner) in queue.enumerate() {
        let (count, newest) = clients.entry(owner).or_default();
        *count += 1;
        *newest = place;
    }
    let own = clients.get(&client).map_or(0, |(count, _)| *count);
    let most = clients.into_values().max()?;
    (most.0 > own + 1).then_some(most.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_with_most_entries_gives_up_its_newest() {
        let check = |queue: &str, client: char, expected: Option<usize>| {
            assert_eq!(crowded_place(queue.chars(), client), expected, "{queue} {client}");
        };
        check("aaba", 'c', Some(3));
        check("aaba", 'b', Some(3));
        check("aaba", 'a', None);
        check("aabb", 'c', Some(3));
        check("aab", 'b', None);
        check("abc", 'd', None);
        check("", 'a', None);
    }
}
