//! Two places on the disk, written in turn: the newest netmap, and the one before it.
//!
//! A new netmap takes the place of the older of the two, whole or not at all. So there is always one that is whole, whatever
//! happens while the other is written. A file is a line that names its form, a SHA-256 over what follows, and the netmap as it
//! crosses the link. An older program that finds a newer form starts without a netmap.
//!
//! On a full disk the older netmap is removed for the new one. When that does not help either, and the new netmap takes something
//! away, the stored ones are withdrawn: renamed, which needs no space. A withdrawn netmap is not put in force after a restart; it
//! only keeps older ones from being taken. If not even a rename is possible (a read-only disk), the error
//! says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};
use causeway_api::sync::MutexExt;
use causeway_daemon::data_dir::{make_folder, write_atomic};
use causeway_netmap::{Netmap, NetmapUpdateData};

/// The folder inside the data dir.
pub const FOLDER: &str = "netmap";
const PLACES: [&str; 2] = ["a", "b"];
/// Behind the name of a place whose netmap is withdrawn.
const WITHDRAWN: &str = ".withdrawn";
const MAGIC: &[u8] = b"causeway-netmap 1\n";
const SUM_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
#[error("{} cannot be {action}", path.display())]
pub struct NetmapFileError {
    pub path: PathBuf,
    pub action: &'static str,
    pub source: io::Error,
}

pub struct NetmapFiles {
    folder: PathBuf,
    stored: Mutex<Stored>,
}

/// The netmaps on the disk.
struct Stored {
    /// The slot that the next netmap is written to.
    next: usize,
    /// The newest that is there, withdrawn or not.
    newest: Option<Arc<Netmap>>,
    is_withdrawn: bool,
}

/// The netmap that an edge finds when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    Nothing,
    Netmap(Arc<Netmap>),
    /// A later netmap took something away and could not be written: this one must not be put in force unless the cloud says so.
    Withdrawn(Arc<Netmap>),
}

impl NetmapFiles {
    /// Opens the folder and finds the newest netmap that is whole.
    pub fn open(folder: &Path) -> Result<(NetmapFiles, Found), NetmapFileError> {
        let failed = |path: &Path, action| {
            let path = path.to_owned();
            move |source| NetmapFileError { path, action, source }
        };
        make_folder(folder).map_err(failed(folder, "made"))?;
        remove_leftovers(folder);
        let [a, b] = PLACES.map(|place| read(&folder.join(place)));
        let order = |netmap: &Netmap| netmap.stamp().order();
        let is_b_newest = b.as_ref().map(order) > a.as_ref().map(order);
        let next = if is_b_newest { 0 } else { 1 };
        let newest = if is_b_newest { b } else { a };
        let withdrawn = || PLACES.iter().filter_map(|place| read(&withdrawn_path(folder, place)));
        let found = match newest {
            Some(netmap) => Found::Netmap(Arc::new(netmap)),
            None => match withdrawn().max_by_key(order) {
                Some(netmap) => Found::Withdrawn(Arc::new(netmap)),
                None => Found::Nothing,
            },
        };
        let (newest, is_withdrawn) = match found.clone() {
            Found::Nothing => (None, false),
            Found::Netmap(netmap) => (Some(netmap), false),
            Found::Withdrawn(netmap) => (Some(netmap), true),
        };
        let stored = Mutex::new(Stored { next, newest, is_withdrawn });
        Ok((NetmapFiles { folder: folder.to_owned(), stored }, found))
    }

    /// Writes a netmap that is in force already. The error says what a restart would find instead.
    pub fn write(&self, netmap: &Arc<Netmap>) -> Result<(), String> {
        let mut stored = self.stored.lock_ignoring_poison();
        let encoded = encode(netmap);
        let mut written = self.replace(&mut stored, netmap, &encoded);
        if written.as_ref().is_err_and(is_full) && stored.newest.is_some() {
            // The older of the two is worth less than its space.
            let _ = remove(&self.folder.join(PLACES[stored.next]));
            written = self.replace(&mut stored, netmap, &encoded);
        }
        let Err(error) = written else { return Ok(()) };
        let left = self.withdraw_if_too_permissive(&mut stored, netmap);
        Err(format!("the netmap in force cannot be written to {}: {error}; {left}", self.folder.display()))
    }

    fn replace(&self, stored: &mut Stored, netmap: &Arc<Netmap>, encoded: &[u8]) -> io::Result<()> {
        write_atomic(&self.folder.join(PLACES[stored.next]), encoded)?;
        *stored = Stored { next: 1 - stored.next, newest: Some(netmap.clone()), is_withdrawn: false };
        for place in PLACES {
            // One that stays is older than the one just written, and not looked at beside it.
            let _ = remove(&withdrawn_path(&self.folder, place));
        }
        Ok(())
    }

    /// Makes sure that the stored netmap does not grant again what `in_force` takes away. Returns what a
    /// restart would find.
    fn withdraw_if_too_permissive(&self, stored: &mut Stored, in_force: &Netmap) -> String {
        const NOTHING: &str = "after a restart nothing is forwarded until the cloud is reached";
        let Some(newest) = stored.newest.clone() else { return NOTHING.to_owned() };
        let generation = newest.generation();
        if !stored.is_withdrawn && !takes_away(&newest, in_force) {
            return format!(
                "a restart without the cloud would begin with netmap {generation}, which allows no more"
            );
        }
        match self.withdraw() {
            Ok(()) => {
                stored.is_withdrawn = true;
                format!("netmap {generation} on the disk is withdrawn: {NOTHING}")
            }
            Err(error) => format!(
                "and netmap {generation} on the disk cannot be withdrawn ({error}): a restart without the cloud would allow \
                 again what was taken away since"
            ),
        }
    }

    fn withdraw(&self) -> io::Result<()> {
        for place in PLACES {
            match fs::rename(self.folder.join(place), withdrawn_path(&self.folder, place)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // So that it holds over a loss of power. A file system that cannot has renamed nevertheless.
        let _ = fs::File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// Removes everything.
    pub fn clear(&self) -> io::Result<()> {
        let mut stored = self.stored.lock_ignoring_poison();
        for place in PLACES {
            remove(&self.folder.join(place))?;
            remove(&withdrawn_path(&self.folder, place))?;
        }
        *stored = Stored { next: 0, newest: None, is_withdrawn: false };
        Ok(())
    }
}

/// Returns whether an entry of `stored` is missing or different in `in_force`: then a client may have lost
/// access. Added entries take nothing away, because entries are permissions and their objects.
fn takes_away(stored: &Netmap, in_force: &Netmap) -> bool {
    stored.entries().any(|(key, value)| in_force.get(key.as_str()) != Some(value))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn withdrawn_path(folder: &Path, place: &str) -> PathBuf {
    folder.join(format!("{place}{WITHDRAWN}"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The netmap in a file, if it is whole.
fn read(path: &Path) -> Option<Netmap> {
    let read = match fs::read(path) {
        Ok(content) => decode(&content).map_err(str::to_owned),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        // A disk that fails is no reason not to start: the other place may be whole, and the cloud has it too.
        Err(error) => Err(error.to_string()),
    };
    let left_aside = |why: &String| {
        tracing::warn!(path = %path.display(), why, "a persisted netmap cannot be used and is ignored");
    };
    read.inspect_err(left_aside).ok()
}

/// The newest netmap in a data dir, without its lock. For tests and for inspecting an edge that is not
/// running.
pub fn persisted(data_dir: &Path) -> Option<Netmap> {
    let whole = |place: &str| decode(&fs::read(data_dir.join(FOLDER).join(place)).ok()?).ok();
    PLACES.into_iter().filter_map(whole).max_by_key(|netmap| netmap.stamp().order())
}

pub fn encode(netmap: &Netmap) -> Vec<u8> {
    let encoded = netmap.update_from(None).encode();
    [MAGIC, digest(&SHA256, &encoded).as_ref(), &encoded].concat()
}

pub fn decode(content: &[u8]) -> Result<Netmap, &'static str> {
    let content = content.strip_prefix(MAGIC).ok_or("it does not begin like a netmap of this version")?;
    let (sum, encoded) = content.split_at_checked(SUM_BYTES).ok_or("it is cut short")?;
    if digest(&SHA256, encoded).as_ref() != sum {
        return Err("it is damaged");
    }
    let update = NetmapUpdateData::decode(encoded).map_err(|_| "its netmap cannot be read")?;
    Netmap::apply(None, &update).map_err(|_| "its netmap is not what it says")
}

/// Removes the temporary files of a process that was killed while it wrote.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}
