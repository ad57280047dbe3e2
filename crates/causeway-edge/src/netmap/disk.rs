//! Two places on the disk, written in turn: the newest netmap, and the one before it.
//!
//! A new netmap takes the place of the older of the two, whole or not at all. So there is always one that is whole, whatever
//! happens while the other is written. A file is a line that names its form, a SHA-256 over what follows, and the netmap as it
//! crosses the link. An older program that finds a newer form starts without a netmap.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use causeway_daemon::data_dir::{make_folder, write_atomic};
use causeway_netmap::{Netmap, Update};

/// The folder inside the data dir.
pub const FOLDER: &str = "netmap";
const PLACES: [&str; 2] = ["a", "b"];
const MAGIC: &[u8] = b"causeway-netmap 1\n";
const SUM_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
#[error("{} cannot be {action}", path.display())]
pub struct NetmapFileError {
    pub path: PathBuf,
    pub action: &'static str,
    pub source: io::Error,
}

pub struct Disk {
    folder: PathBuf,
    /// Where the next one goes.
    next: Mutex<usize>,
}

impl Disk {
    /// Opens the folder and finds the newest netmap that is whole.
    pub fn open(folder: &Path) -> Result<(Disk, Option<Netmap>), NetmapFileError> {
        let failed = |path: &Path, action| {
            let path = path.to_owned();
            move |source| NetmapFileError { path, action, source }
        };
        make_folder(folder).map_err(failed(folder, "made"))?;
        remove_leftovers(folder);
        let mut found: [Option<Netmap>; 2] = [None, None];
        for (place, name) in found.iter_mut().zip(PLACES) {
            let path = folder.join(name);
            let read = match fs::read(&path) {
                Ok(content) => decode(&content).map_err(str::to_owned),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // A disk that fails is no reason not to start: the other place may be whole, and the cloud has it too.
                Err(error) => Err(error.to_string()),
            };
            match read {
                Ok(netmap) => *place = Some(netmap),
                Err(why) => {
                    tracing::warn!(path = %path.display(), why, "a persisted netmap is left aside")
                }
            }
        }
        let [a, b] = found;
        let is_b_newest = b.as_ref().map(Netmap::generation) > a.as_ref().map(Netmap::generation);
        let next = if is_b_newest { 0 } else { 1 };
        let newest = if is_b_newest { b } else { a };
        Ok((Disk { folder: folder.to_owned(), next: Mutex::new(next) }, newest))
    }

    /// Writes a netmap in place of the older one. When it fails, both are as they were.
    pub fn write(&self, netmap: &Netmap) -> io::Result<()> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        write_atomic(&self.folder.join(PLACES[*next]), &encode(netmap))?;
        *next = 1 - *next;
        Ok(())
    }

    /// Removes both.
    pub fn clear(&self) -> io::Result<()> {
        for place in PLACES {
            match fs::remove_file(self.folder.join(place)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The newest netmap in a data dir, whoever holds it. For tests and for people who look at an edge that is not running.
pub fn persisted(data_dir: &Path) -> Option<Netmap> {
    let whole = |place: &str| decode(&fs::read(data_dir.join(FOLDER).join(place)).ok()?).ok();
    PLACES.into_iter().filter_map(whole).max_by_key(Netmap::generation)
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
    let update = Update::decode(encoded).map_err(|_| "its netmap cannot be read")?;
    Netmap::apply(None, &update).map_err(|_| "its netmap is not what it says")
}

/// What a process that was killed while it wrote has left.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}
