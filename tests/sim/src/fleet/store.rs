//! The store: what every gateway should know, revision by revision, and backups that come back.
//!
//! All states are kept, so that a replica can be behind by any number of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use causeway_netmap::{EntryKey, Generation};

use testlab::random::SeededRandom;

/// The content of one gateway's netmap: small numbers under small keys.
pub type Content = BTreeMap<u8, u8>;

#[derive(Clone, Default)]
pub struct State {
    pub gateways: BTreeMap<usize, Content>,
}

pub struct Store {
    /// Newest last.
    history: Vec<(Generation, Arc<State>)>,
}

impl Store {
    pub fn new(gateways: usize) -> Store {
        let state = State { gateways: (0..gateways).map(|gateway| (gateway, Content::new())).collect() };
        Store { history: vec![(Generation { epoch: 1, revision: 1 }, Arc::new(state))] }
    }

    pub fn len(&self) -> usize {
        self.history.len()
    }

    /// The state at a place in the history; the last one when it is beyond.
    pub fn at(&self, place: usize) -> (Generation, Arc<State>) {
        self.history[place.min(self.history.len() - 1)].clone()
    }

    pub fn newest(&self) -> (Generation, Arc<State>) {
        self.at(usize::MAX)
    }

    /// Something changes, or only the revision does, as when a status is written.
    pub fn change(&mut self, random: &mut SeededRandom) {
        let (generation, state) = self.newest();
        let mut state = State::clone(&state);
        if random.percent(80) {
            let gateway = random.below(state.gateways.len() as u64) as usize;
            let content = state.gateways.entry(gateway).or_default();
            match random.percent(70) {
                true => drop(content.insert(random.below(6) as u8, random.below(4) as u8)),
                false => drop(content.remove(&(random.below(6) as u8))),
            }
        }
        let generation = Generation { revision: generation.revision + 1, ..generation };
        self.history.push((generation, Arc::new(state)));
    }

    /// A backup is put back: older content, any revision, a higher epoch.
    pub fn restore(&mut self, random: &mut SeededRandom) {
        let epoch = self.newest().0.epoch + 1;
        let (old, state) = self.at(random.below(self.history.len() as u64) as usize);
        self.history.push((Generation { epoch, revision: old.revision }, state));
    }
}

pub fn entries(content: &Content) -> Vec<(EntryKey, Bytes)> {
    content
        .iter()
        .map(|(key, value)| (EntryKey::of("k", &key.to_string()), Bytes::from(vec![*value])))
        .collect()
}
