//! Keeps the older files of the journal within their bound, by dropping lines of the gateways that have most (`fair`).
//!
//! Called by the thread that writes, after a rotation. Files are read three times in a row, never held; each is replaced
//! as a whole, so a crash leaves the old or the new one. Files that became small are joined. A reader that has one open keeps
//! what it has; lines that it sees twice carry queue and number.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use causeway_daemon::rotated::{self, RotationLimits};
use serde::Deserialize;

use super::fair::{self, CLIENT_GROUPS, Cuts};

/// After a compaction so much of the bound is used, in quarters: the rest is room until the next one.
const USED_QUARTERS: u64 = 3;

/// Deletes the oldest files until the rest is within `limits`. Returns how many bytes were given up. For a disk on which there
/// is no room to choose lines.
pub fn drop_oldest(folder: &Path, name: &'static str, limits: RotationLimits) -> io::Result<u64> {
    let files = Files { folder, name };
    let _ = fs::remove_file(files.scratch_path());
    let older = (limits.files_max as u64).saturating_sub(1);
    let bound = limits.file_bytes_max.saturating_mul(older);
    let before = files.bytes()?;
    let mut left = before;
    for path in files.oldest_first()? {
        if left <= bound {
            break;
        }
        left = left.saturating_sub(fs::metadata(&path)?.len());
        fs::remove_file(path)?;
    }
    Ok(before - left)
}

/// The gateway and client of a line.
#[derive(Deserialize, Default)]
struct Owner<'a> {
    #[serde(borrow, default)]
    gateway: Cow<'a, str>,
    #[serde(borrow, default)]
    subject: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    client: Option<Cow<'a, str>>,
}

impl<'a> Owner<'a> {
    fn of(line: &'a [u8]) -> Owner<'a> {
        serde_json::from_slice(line).unwrap_or_default()
    }

    /// A host has one share, however many ports it calls from.
    fn group(&self) -> usize {
        let client = self.client.as_deref().unwrap_or_default();
        let host = client.rsplit_once(':').map_or(client, |(host, _)| host);
        fair::group(self.subject.as_deref().unwrap_or(host))
    }
}

/// Brings the files before the current one within `limits`. Returns how many bytes were given up.
pub fn run(folder: &Path, name: &'static str, limits: RotationLimits) -> io::Result<u64> {
    let older = (limits.files_max as u64).saturating_sub(1);
    let bound = limits.file_bytes_max.saturating_mul(older);
    let files = Files { folder, name };
    let before = files.bytes()?;
    if before <= bound {
        return Ok(0);
    }
    let target = bound / 4 * USED_QUARTERS;
    let mut gateways: HashMap<String, u64> = HashMap::new();
    files.each_line(|line| {
        let owner = Owner::of(line);
        match gateways.get_mut(&*owner.gateway) {
            Some(bytes) => *bytes += line.len() as u64,
            None => drop(gateways.insert(owner.gateway.into_owned(), line.len() as u64)),
        }
    })?;
    let level = fair::level(gateways.values().copied(), target);
    let mut clients: HashMap<String, Vec<u64>> = HashMap::new();
    for (gateway, bytes) in gateways.into_iter().filter(|(_, bytes)| *bytes > level) {
        tracing::info!(gateway, bytes, level, "the oldest records of a gateway make room in the journal");
        clients.insert(gateway, vec![0; CLIENT_GROUPS]);
    }
    files.each_line(|line| {
        let owner = Owner::of(line);
        if let Some(groups) = clients.get_mut(&*owner.gateway) {
            groups[owner.group()] += line.len() as u64;
        }
    })?;
    let mut cuts = Cuts::new(clients, level);
    for path in files.oldest_first()? {
        if cuts.is_done() {
            break;
        }
        files.rewrite(&path, |line| {
            let owner = Owner::of(line);
            !cuts.takes(&owner.gateway, owner.group(), line.len() as u64)
        })?;
    }
    files.join_small(limits.file_bytes_max)?;
    File::open(folder)?.sync_all()?;
    Ok(before.saturating_sub(files.bytes()?))
}

/// The files before the current one.
struct Files<'a> {
    folder: &'a Path,
    name: &'static str,
}

impl Files<'_> {
    fn oldest_first(&self) -> io::Result<Vec<PathBuf>> {
        let mut numbers = rotated::older(self.folder, self.name)?;
        numbers.reverse();
        Ok(numbers.into_iter().map(|number| rotated::path_of_older(self.folder, self.name, number)).collect())
    }

    fn bytes(&self) -> io::Result<u64> {
        let sizes = self.oldest_first()?.into_iter().map(|path| Ok(fs::metadata(path)?.len()));
        sizes.sum()
    }

    fn each_line(&self, mut handle_line: impl FnMut(&[u8])) -> io::Result<()> {
        let mut line = Vec::new();
        for path in self.oldest_first()? {
            let mut reader = BufReader::new(File::open(path)?);
            while read_line(&mut reader, &mut line)? {
                handle_line(&line);
            }
        }
        Ok(())
    }

    /// Keeps the lines for which `keep` is true. A file without any is removed.
    fn rewrite(&self, path: &Path, mut keep: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let (mut reader, mut writer) = (BufReader::new(File::open(path)?), self.scratch()?);
        let (mut line, mut kept) = (Vec::new(), 0);
        while read_line(&mut reader, &mut line)? {
            if keep(&line) {
                writer.write_all(&line)?;
                kept += 1;
            }
        }
        if kept == 0 {
            return fs::remove_file(path);
        }
        self.replace(path, writer)
    }

    /// Neighbours that fit into one file become one, under the name of the newer: a reader that goes from old to new still
    /// finds every line.
    fn join_small(&self, file_bytes_max: u64) -> io::Result<()> {
        let mut before: Option<(PathBuf, u64)> = None;
        for path in self.oldest_first()? {
            let bytes = fs::metadata(&path)?.len();
            before = match before {
                Some((older, older_bytes)) if older_bytes + bytes <= file_bytes_max => {
                    let mut writer = self.scratch()?;
                    io::copy(&mut File::open(&older)?, &mut writer)?;
                    io::copy(&mut File::open(&path)?, &mut writer)?;
                    self.replace(&path, writer)?;
                    fs::remove_file(older)?;
                    Some((path, older_bytes + bytes))
                }
                _ => Some((path, bytes)),
            };
        }
        Ok(())
    }

    fn scratch(&self) -> io::Result<BufWriter<File>> {
        let path = self.scratch_path();
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(BufWriter::new(file))
    }

    fn replace(&self, path: &Path, writer: BufWriter<File>) -> io::Result<()> {
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
        fs::rename(self.scratch_path(), path)
    }

    fn scratch_path(&self) -> PathBuf {
        self.folder.join(format!("{}.compacting", self.name))
    }
}

fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(reader.read_until(b'\n', line)? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(gateway: &str, client: &str, number: u64) -> String {
        format!("{{\"client\":\"{client}:7\",\"gateway\":\"{gateway}\",\"seq\":\"{number:08}\"}}\n")
    }

    fn count(folder: &Path, part: &str) -> usize {
        let files = Files { folder, name: "fleet" };
        let mut count = 0;
        files.each_line(|line| count += usize::from(String::from_utf8_lossy(line).contains(part))).unwrap();
        count
    }

    #[test]
    fn a_gateway_that_floods_pushes_out_only_its_own_records() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let limits = RotationLimits { file_bytes_max: 20_000, files_max: 5 };
        let mut files =
            rotated::RotatedFiles::open_unbounded(folder, "fleet", limits.file_bytes_max).unwrap();
        let append = |files: &mut rotated::RotatedFiles, text: &str| {
            if files.append(text.as_bytes()).unwrap() {
                run(folder, "fleet", limits).unwrap();
            }
        };
        for number in 0..100 {
            append(&mut files, &line("quiet", "10.0.0.1", number));
            append(&mut files, &line("flood", "10.0.0.2", number));
        }
        for number in 0..20_000 {
            append(&mut files, &line("flood", "10.0.0.9", number));
        }
        assert_eq!(count(folder, "\"quiet\""), 100, "all records of the other gateway are there");
        assert_eq!(count(folder, "10.0.0.2"), 100, "and those of the quiet client of the same gateway");
        let left = count(folder, "10.0.0.9");
        assert!((500..2000).contains(&left), "{left}");
        let newest = Files { folder, name: "fleet" }.oldest_first().unwrap().pop().unwrap();
        let text = fs::read_to_string(newest).unwrap();
        assert!(text.lines().last().unwrap().contains("\"seq\":\"00019"), "the newest are kept: {text}");
        let files = Files { folder, name: "fleet" };
        assert!(files.bytes().unwrap() <= 80_000 && files.oldest_first().unwrap().len() <= 8);
        let mut last = 0;
        files
            .each_line(|line| {
                let text = String::from_utf8_lossy(line);
                if text.contains("10.0.0.9") {
                    let seq: u64 = text.split("\"seq\":\"").nth(1).unwrap()[..8].parse().unwrap();
                    assert!(seq >= last, "in order");
                    last = seq;
                }
            })
            .unwrap();
    }

    #[test]
    fn without_room_to_compact_the_oldest_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for number in 1..=4 {
            fs::write(folder.join(format!("fleet-{number}.jsonl")), vec![b'x'; 1000]).unwrap();
        }
        fs::write(folder.join("fleet.compacting"), "half").unwrap();
        let limits = RotationLimits { file_bytes_max: 1000, files_max: 3 };
        assert_eq!(drop_oldest(folder, "fleet", limits).unwrap(), 2000);
        let left = |name: &str| folder.join(name).exists();
        assert_eq!(
            [1, 2, 3, 4].map(|number| left(&format!("fleet-{number}.jsonl"))),
            [true, true, false, false]
        );
        assert!(!left("fleet.compacting"));
        assert_eq!(drop_oldest(folder, "fleet", limits).unwrap(), 0, "within its bound");
    }

    #[test]
    fn what_is_within_its_bound_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fleet-1.jsonl"), line("a", "b", 1)).unwrap();
        let limits = RotationLimits { file_bytes_max: 1000, files_max: 2 };
        assert_eq!(run(folder.path(), "fleet", limits).unwrap(), 0);
        // A journal of one file keeps nothing before it.
        let none = RotationLimits { file_bytes_max: 1000, files_max: 1 };
        assert!(run(folder.path(), "fleet", none).unwrap() > 0);
        assert_eq!(count(folder.path(), "a"), 0);
    }
}
