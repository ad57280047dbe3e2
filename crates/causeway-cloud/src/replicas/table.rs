//! The replica to which every gateway is attached, as far as this replica can see. Pure: the store's changes,
//! local sessions and the time go in; lookups and wished-for writes come out.
//!
//! `replicas/ID` names a replica and is written anew every two seconds; `directory/GATEWAY` says which
//! replica holds the gateway's session, and with which epoch. No clocks are compared: a replica is gone when
//! our own renewals have been visible for six seconds in which its renewals were not. So a store that is away
//! for all replicas makes none of them vanish.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use causeway_channel::session::Instance;
use causeway_store::{OPS_MAX, Op, Revision};
use serde::{Deserialize, Serialize};

pub const REPLICAS: &str = "replicas/";
pub const DIRECTORY: &str = "directory/";
/// Interval at which a replica renews its record.
pub const RENEW: Duration = Duration::from_secs(2);
/// A replica is gone after this time: three renewals that were not seen.
pub const GONE_AFTER: Duration = Duration::from_secs(6);
/// The records of a dead replica are removed after this long; until then the entries help to tell where its
/// gateways were. Nothing waits for it.
pub const FORGET_AFTER: Duration = Duration::from_secs(60);

/// `replicas/ID` in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Address of its channel port for other replicas.
    pub address: String,
    /// Endpoints for edges.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// For people.
    pub started: String,
    /// Counts renewals, so that no two are equal.
    pub renewal: u64,
}

/// `directory/GATEWAY` in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentRecord {
    pub replica: String,
    /// Of the session; a higher one replaces a lower one.
    pub epoch: u64,
    /// For people.
    pub since: String,
    /// The process that holds the session, as hexadecimal digits; see `Hello::instance`. Absent in what an
    /// older replica wrote, and of an edge that does not say: its older sessions elsewhere linger then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// The identity of one session of a gateway. A higher epoch is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKey {
    pub epoch: u64,
    /// The process that holds it; `None` when the edge does not say.
    pub instance: Option<Instance>,
}

impl AttachmentRecord {
    fn key(&self) -> SessionKey {
        let instance = self.instance.as_deref().and_then(|text| Instance::from_str_radix(text, 16).ok());
        SessionKey { epoch: self.epoch, instance }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayLocation {
    Here,
    /// At another replica that seems to be alive.
    There {
        replica: String,
        address: String,
        since: String,
    },
    Nowhere,
}

#[derive(Debug)]
struct Known {
    record: ReplicaRecord,
    revision: Revision,
    seen: Instant,
}

#[derive(Debug)]
struct Local {
    key: SessionKey,
    since: String,
}

#[derive(Debug)]
pub struct AttachmentTable {
    me: String,
    /// When our own renewal was last seen in the store.
    own_seen: Instant,
    replicas: HashMap<String, Known>,
    entries: HashMap<String, (AttachmentRecord, Revision)>,
    local: HashMap<String, Local>,
    /// Gateways whose entry may be out of date.
    unsettled: BTreeSet<String>,
}

impl AttachmentTable {
    pub fn new(me: String, now: Instant) -> AttachmentTable {
        AttachmentTable {
            me,
            own_seen: now,
            replicas: HashMap::new(),
            entries: HashMap::new(),
            local: HashMap::new(),
            unsettled: BTreeSet::new(),
        }
    }

    pub fn me(&self) -> &str {
        &self.me
    }

    /// A replica's record as it is now in the store; `None`: it was removed.
    pub fn handle_replica(
        &mut self,
        id: &str,
        record: Option<ReplicaRecord>,
        revision: Revision,
        now: Instant,
    ) {
        if id == self.me {
            self.own_seen = now;
            return;
        }
        let Some(record) = record else {
            self.replicas.remove(id);
            return;
        };
        match self.replicas.get_mut(id) {
            // The same record, read once more, is no sign of life.
            Some(known) if known.revision >= revision => {}
            Some(known) => *known = Known { record, revision, seen: now },
            None => drop(self.replicas.insert(id.to_owned(), Known { record, revision, seen: now })),
        }
    }

    /// A gateway's entry as it is now in the store; `None`: it was removed. Returns the session that replaces
    /// one of ours, if it does.
    pub fn handle_entry(
        &mut self,
        gateway: &str,
        entry: Option<AttachmentRecord>,
        revision: Revision,
    ) -> Option<SessionKey> {
        let known = self.entries.get(gateway);
        if known.is_some_and(|(_, known)| *known > revision) {
            return None;
        }
        let replaced_by = entry.as_ref().and_then(|entry| {
            let local = self.local.get(gateway)?;
            (entry.replica != self.me && entry.epoch > local.key.epoch).then(|| entry.key())
        });
        match entry {
            Some(entry) => drop(self.entries.insert(gateway.to_owned(), (entry, revision))),
            None => drop(self.entries.remove(gateway)),
        }
        self.note(gateway);
        replaced_by
    }

    /// Removes the replicas that are not in `replicas`, the records that were read after the watch was interrupted.
    pub fn forget_others(&mut self, replicas: &BTreeSet<String>) {
        self.replicas.retain(|id, _| replicas.contains(id));
    }

    /// Removes the directory's entries of gateways that are not in `gateways`, after the watch was interrupted.
    pub fn forget_entries(&mut self, gateways: &BTreeSet<String>) {
        let gone: Vec<String> =
            self.entries.keys().filter(|gateway| !gateways.contains(*gateway)).cloned().collect();
        for gateway in gone {
            self.entries.remove(&gateway);
            self.note(&gateway);
        }
    }

    /// A session was taken here.
    pub fn handle_attached(&mut self, gateway: &str, key: SessionKey, since: String) {
        self.local.insert(gateway.to_owned(), Local { key, since });
        self.note(gateway);
    }

    /// A session has ended here. An older one than the present one changes nothing.
    pub fn handle_detached(&mut self, gateway: &str, epoch: u64) {
        if self.local.get(gateway).is_some_and(|local| local.key.epoch <= epoch) {
            self.local.remove(gateway);
            self.note(gateway);
        }
    }

    /// Sets the gateways that are attached here.
    pub fn handle_local(&mut self, attached: &[(String, SessionKey)], since: &str) {
        for (gateway, key) in attached {
            if self.local.get(gateway).is_none_or(|local| local.key != *key) {
                self.handle_attached(gateway, *key, since.to_owned());
            }
        }
        if self.local.len() > attached.len() {
            let still: BTreeSet<&String> = attached.iter().map(|(gateway, _)| gateway).collect();
            let gone: Vec<String> =
                self.local.keys().filter(|gateway| !still.contains(gateway)).cloned().collect();
            gone.iter().for_each(|gateway| self.handle_detached(gateway, u64::MAX));
        }
    }

    pub fn location_of(&self, gateway: &str) -> GatewayLocation {
        let local = self.local.get(gateway);
        // A newer session elsewhere counts, even while the older one here still lingers.
        let is_newer = |entry: &AttachmentRecord| local.is_none_or(|local| entry.epoch > local.key.epoch);
        let found = self.entries.get(gateway).filter(|(entry, _)| is_newer(entry)).and_then(|(entry, _)| {
            let known = self.replicas.get(&entry.replica).filter(|known| !self.is_gone(known))?;
            Some(GatewayLocation::There {
                replica: entry.replica.clone(),
                address: known.record.address.clone(),
                since: entry.since.clone(),
            })
        });
        found.unwrap_or(if local.is_some() { GatewayLocation::Here } else { GatewayLocation::Nowhere })
    }

    /// The newest session known of a gateway, wherever it is.
    pub fn newest(&self, gateway: &str) -> Option<SessionKey> {
        let there = self.entries.get(gateway).map(|(entry, _)| entry.key());
        let here = self.local.get(gateway).map(|local| local.key);
        there.into_iter().chain(here).max_by_key(|key| key.epoch)
    }

    /// Returns the other replicas that seem to be alive, with their addresses.
    pub fn other_replicas(&self) -> Vec<(String, String)> {
        let alive = self.replicas.iter().filter(|(_, known)| !self.is_gone(known));
        alive.map(|(id, known)| (id.clone(), known.record.address.clone())).collect()
    }

    /// Returns the endpoints of the other replicas that seem to be alive, in an order that does not change by
    /// itself.
    pub fn other_endpoints(&self) -> Vec<String> {
        let alive = self.replicas.values().filter(|known| !self.is_gone(known));
        let endpoints: BTreeSet<&String> = alive.flat_map(|known| &known.record.endpoints).collect();
        endpoints.into_iter().cloned().collect()
    }

    fn is_gone(&self, known: &Known) -> bool {
        self.own_seen.saturating_duration_since(known.seen) > GONE_AFTER
    }

    fn note(&mut self, gateway: &str) {
        if !self.unsettled.contains(gateway) {
            self.unsettled.insert(gateway.to_owned());
        }
    }

    pub fn has_writes(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Returns the operations that bring the directory up to date, at most one commit of them.
    pub fn next_writes(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        while ops.len() < OPS_MAX
            && let Some(gateway) = self.unsettled.pop_first()
        {
            ops.extend(self.write_for(&gateway));
        }
        ops
    }

    fn write_for(&self, gateway: &str) -> Option<Op> {
        let key = format!("{DIRECTORY}{gateway}");
        let entry = self.entries.get(gateway);
        let Some(local) = self.local.get(gateway) else {
            let (_, revision) = entry.filter(|(entry, _)| entry.replica == self.me)?;
            return Some(Op::Delete { key, expected: Some(*revision) });
        };
        let wished = AttachmentRecord {
            replica: self.me.clone(),
            epoch: local.key.epoch,
            since: local.since.clone(),
            instance: local.key.instance.map(|instance| format!("{instance:032x}")),
        };
        let value = encode(&wished);
        match entry {
            None => Some(Op::Create { key, value }),
            // Equal epochs at two replicas: the later session is right, and its replica is the one that still
            // has to write.
            Some((entry, _)) if entry.replica != self.me && entry.epoch > local.key.epoch => None,
            Some((entry, _)) if *entry == wished => None,
            Some((_, revision)) => Some(Op::Update { key, value, expected: *revision }),
        }
    }

    /// These were committed.
    pub fn handle_written(&mut self, ops: &[Op], revision: Revision) {
        for op in ops {
            let Some(gateway) = op.key().strip_prefix(DIRECTORY) else { continue };
            let entry = match op {
                Op::Create { value, .. } | Op::Update { value, .. } => serde_json::from_slice(value).ok(),
                _ => None,
            };
            match entry {
                Some(entry) => drop(self.entries.insert(gateway.to_owned(), (entry, revision))),
                None => drop(self.entries.remove(gateway)),
            }
        }
    }

    /// These were not committed: another replica was faster, or the store was away. They are looked at again.
    pub fn handle_unwritten(&mut self, ops: &[Op]) {
        for gateway in ops.iter().filter_map(|op| op.key().strip_prefix(DIRECTORY)) {
            self.unsettled.insert(gateway.to_owned());
        }
    }

    /// Returns operations that remove the records of replicas that died long ago, at most one commit of them.
    pub fn stale_records(&self) -> Vec<Op> {
        let is_dead = |known: &Known| self.own_seen.saturating_duration_since(known.seen) > FORGET_AFTER;
        let is_left = |(_, (entry, _)): &(&String, &(AttachmentRecord, Revision))| {
            entry.replica != self.me && self.replicas.get(&entry.replica).is_none_or(is_dead)
        };
        let entries = self.entries.iter().filter(is_left).map(|(gateway, (_, revision))| Op::Delete {
            key: format!("{DIRECTORY}{gateway}"),
            expected: Some(*revision),
        });
        let mut ops: Vec<Op> = entries.take(OPS_MAX).collect();
        // A replica's own record goes last, when nothing speaks of it any more.
        if ops.is_empty() {
            let dead = self.replicas.iter().filter(|(_, known)| is_dead(known));
            let delete = |(id, known): (&String, &Known)| Op::Delete {
                key: format!("{REPLICAS}{id}"),
                expected: Some(known.revision),
            };
            ops.extend(dead.map(delete).take(OPS_MAX));
        }
        ops
    }
}

pub fn encode(value: &impl Serialize) -> bytes::Bytes {
    serde_json::to_vec(value).expect("strings and numbers are always JSON").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Lab {
        table: AttachmentTable,
        now: Instant,
        revision: u64,
    }

    impl Lab {
        fn new() -> Lab {
            let now = Instant::now();
            Lab { table: AttachmentTable::new("me".into(), now), now, revision: 10 }
        }

        fn renew(&mut self, id: &str) {
            self.revision += 1;
            let record = ReplicaRecord {
                address: format!("{id}:7444"),
                endpoints: vec![format!("{id}.example:7444")],
                started: String::new(),
                renewal: self.revision,
            };
            self.table.handle_replica(id, Some(record), Revision(self.revision), self.now);
        }

        fn entry(&mut self, gateway: &str, replica: &str, epoch: u64) -> Option<u64> {
            self.revision += 1;
            let entry =
                AttachmentRecord { replica: replica.into(), epoch, since: "then".into(), instance: None };
            self.table.handle_entry(gateway, Some(entry), Revision(self.revision)).map(|key| key.epoch)
        }

        /// Commits the operations of the table and returns them as `verb gateway`.
        fn write(&mut self) -> Vec<String> {
            let ops = self.table.next_writes();
            self.revision += 1;
            self.table.handle_written(&ops, Revision(self.revision));
            ops.iter().map(describe).collect()
        }
    }

    fn key(epoch: u64) -> SessionKey {
        SessionKey { epoch, instance: None }
    }

    #[test]
    fn the_process_of_a_session_travels_with_its_entry() {
        let mut lab = Lab::new();
        let (old, new) = (Some(Instance::MAX), Some(7));
        lab.table.handle_attached("oslo", SessionKey { epoch: 1, instance: old }, "then".into());
        let ops = lab.table.next_writes();
        let [Op::Create { value, .. }] = ops.as_slice() else { unreachable!("{ops:?}") };
        let written: AttachmentRecord = serde_json::from_slice(value).unwrap();
        assert_eq!(written.key().instance, old);
        let elsewhere = AttachmentRecord { replica: "other".into(), ..written };
        let mut another = Lab::new();
        another.table.handle_attached("oslo", SessionKey { epoch: 0, instance: new }, "then".into());
        let told = another.table.handle_entry("oslo", Some(elsewhere), Revision(11));
        assert_eq!(told, Some(SessionKey { epoch: 1, instance: old }));
        // Records of an older replica, and a malformed one.
        for (text, instance) in [("", None), (r#","instance":"7""#, Some(7)), (r#","instance":"x""#, None)] {
            let entry = format!(r#"{{"replica":"r","epoch":3,"since":""{text}}}"#);
            assert_eq!(
                serde_json::from_str::<AttachmentRecord>(&entry).unwrap().key(),
                SessionKey { epoch: 3, instance }
            );
        }
    }

    fn describe(op: &Op) -> String {
        let verb = match op {
            Op::Create { .. } => "create",
            Op::Update { .. } => "update",
            Op::Delete { .. } => "delete",
            Op::Put { .. } => "put",
        };
        format!("{verb} {}", op.key())
    }

    #[test]
    fn a_gateway_is_found_here_there_or_nowhere() {
        let mut lab = Lab::new();
        assert_eq!(lab.table.location_of("oslo"), GatewayLocation::Nowhere);
        lab.entry("oslo", "other", 1);
        assert_eq!(
            lab.table.location_of("oslo"),
            GatewayLocation::Nowhere,
            "nobody knows where that replica is"
        );
        lab.renew("other");
        let there = GatewayLocation::There {
            replica: "other".into(),
            address: "other:7444".into(),
            since: "then".into(),
        };
        assert_eq!(lab.table.location_of("oslo"), there);
        assert_eq!(lab.table.other_endpoints(), ["other.example:7444"]);
        lab.table.handle_attached("oslo", key(2), "now".into());
        assert_eq!(lab.table.location_of("oslo"), GatewayLocation::Here);
        assert_eq!(lab.table.newest("oslo"), Some(key(2)));
        assert_eq!(lab.write(), ["update directory/oslo"]);
        assert_eq!(lab.write(), [""; 0], "done once");
        lab.table.handle_detached("oslo", 1);
        assert_eq!(lab.table.location_of("oslo"), GatewayLocation::Here, "the end of an older session");
        lab.table.handle_detached("oslo", 2);
        assert_eq!(lab.write(), ["delete directory/oslo"]);
        assert_eq!(lab.table.location_of("oslo"), GatewayLocation::Nowhere);
    }

    #[test]
    fn a_replica_is_gone_when_only_its_own_renewals_are_missing() {
        let mut lab = Lab::new();
        lab.entry("oslo", "other", 1);
        lab.renew("other");
        lab.renew("me");
        // The store is away: no replica is seen, and none is gone.
        lab.now += SECOND * 60;
        assert_ne!(lab.table.location_of("oslo"), GatewayLocation::Nowhere);
        lab.renew("other");
        for _ in 0..3 {
            lab.now += SECOND * 2;
            lab.renew("me");
            // Reading the old record once more is no renewal.
            let known = &lab.table.replicas["other"];
            let (record, revision) = (known.record.clone(), known.revision);
            lab.table.handle_replica("other", Some(record), revision, lab.now);
        }
        assert_ne!(lab.table.location_of("oslo"), GatewayLocation::Nowhere);
        lab.now += SECOND;
        lab.renew("me");
        assert_eq!(lab.table.location_of("oslo"), GatewayLocation::Nowhere);
        assert_eq!(lab.table.stale_records(), []);
        lab.renew("other");
        assert_eq!(lab.table.other_replicas().len(), 1, "back again");
        lab.now += FORGET_AFTER + SECOND;
        lab.renew("me");
        let left: Vec<String> = lab.table.stale_records().iter().map(describe).collect();
        assert_eq!(left, ["delete directory/oslo"]);
        lab.revision += 1;
        lab.table.handle_entry("oslo", None, Revision(lab.revision));
        let left: Vec<String> = lab.table.stale_records().iter().map(describe).collect();
        assert_eq!(left, ["delete replicas/other"]);
    }

    #[test]
    fn the_higher_epoch_wins_wherever_it_is() {
        let mut lab = Lab::new();
        lab.renew("other");
        lab.table.handle_attached("oslo", key(5), "now".into());
        assert_eq!(lab.write(), ["create directory/oslo"]);
        assert_eq!(lab.entry("oslo", "other", 4), None, "an older session does not replace ours");
        assert_eq!(lab.write(), ["update directory/oslo"]);
        assert_eq!(lab.entry("oslo", "other", 6), Some(6), "a newer one does");
        assert_eq!(lab.write(), [""; 0]);
        assert!(matches!(lab.table.location_of("oslo"), GatewayLocation::There { .. }), "ours only lingers");
        lab.table.handle_local(&[], "");
        assert_eq!(lab.write(), [""; 0], "the entry is the other's");
        assert!(matches!(lab.table.location_of("oslo"), GatewayLocation::There { .. }));
    }

    #[test]
    fn what_could_not_be_written_is_looked_at_again() {
        let mut lab = Lab::new();
        (0..250).for_each(|number| lab.table.handle_attached(&format!("g{number}"), key(1), String::new()));
        let first = lab.table.next_writes();
        assert_eq!(first.len(), OPS_MAX);
        lab.table.handle_unwritten(&first);
        let mut written = 0;
        while lab.table.has_writes() {
            written += lab.write().len();
        }
        assert_eq!(written, 250);
        lab.table.handle_local(&[("g9".into(), key(1))], "");
        assert_eq!(lab.write().len(), OPS_MAX);
        // An old event that comes late changes nothing that was written since.
        let entry =
            AttachmentRecord { replica: "other".into(), epoch: 9, since: String::new(), instance: None };
        lab.table.handle_entry("g9", Some(entry), Revision(1));
        assert_eq!(lab.table.newest("g9"), Some(key(1)));
    }
}
