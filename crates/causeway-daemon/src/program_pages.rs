//! Returns the pages of the program file that only the start needed.
//!
//! Input: the mappings of this process, as `/proc/self/smaps` lists them. Output: the number of bytes that were unmapped. The
//! start of a role runs code that never runs again (arguments, configuration, certificates, the first handshake), and the
//! kernel keeps it in the process until memory is short. A page that is used again is mapped again from the page cache.
//! Memory that the process has written is left to the allocator.

use std::ops::Range;
use std::time::Duration;
use std::{fs, io};

/// Time from readiness until the pages are returned: the first session, its netmap and the first reports are over by then.
const SETTLED: Duration = Duration::from_secs(5);

/// Waits until the start is over, then returns its pages. Polled by the main loop of a role.
pub async fn release_after_start() {
    tokio::time::sleep(SETTLED).await;
    match release() {
        Ok(bytes) => tracing::debug!(bytes, "returned the pages of the program that the start had used"),
        Err(error) => {
            tracing::debug!(%error, "cannot return the pages of the program that the start had used")
        }
    }
}

/// Unmaps the resident pages of the program file that equal the file. Returns their bytes.
fn release() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let mut released = 0;
    for mapping in clean_mappings(&fs::read_to_string("/proc/self/smaps")?, &program.to_string_lossy()) {
        unmap(&mapping.addresses)?;
        released += mapping.resident_bytes;
    }
    Ok(released)
}

#[allow(unsafe_code)]
fn unmap(addresses: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: the range is a private mapping of the program file without write permission and without a page of its own, so every
    // page in it equals its page of the file. The kernel maps it from there again with its next use, as it did with the first:
    // no byte that the program can read changes.
    match unsafe { libc::madvise(start, addresses.len(), libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One mapping of the program file.
#[derive(Debug, PartialEq, Eq)]
struct ProgramMapping {
    addresses: Range<usize>,
    resident_bytes: usize,
}

/// Returns the mappings of `program` that are private, cannot be written, and hold no page that differs from the file: code and
/// constants, but neither relocated tables nor code with the breakpoint of a debugger.
fn clean_mappings(smaps: &str, program: &str) -> Vec<ProgramMapping> {
    let mut clean = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(addresses) = addresses_of(line) {
            current = is_read_only_of(line, program).then_some((addresses, 0));
            continue;
        }
        let Some((addresses, resident_bytes)) = &mut current else { continue };
        match field_bytes(line) {
            Some(("Rss", bytes)) => *resident_bytes = bytes,
            // Printed after `Rss`. A kernel that does not print it gets nothing unmapped.
            Some(("Anonymous", 0)) if *resident_bytes > 0 => {
                clean.push(ProgramMapping { addresses: addresses.clone(), resident_bytes: *resident_bytes });
                current = None;
            }
            _ => {}
        }
    }
    clean
}

/// The addresses in the head of a mapping, `558d1aace000-558d1aafd000 r-xp 0002f000 fe:00 247003   /usr/bin/causeway`.
fn addresses_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

fn is_read_only_of(head: &str, program: &str) -> bool {
    let mut words = head.split_whitespace().skip(1);
    let is_read_only = matches!(words.next(), Some("r--p" | "r-xp"));
    // The path is the rest of the line, and may contain spaces.
    let inode = words.nth(2);
    let path =
        inode.and_then(|inode| head.split_once(&format!(" {inode} "))).map(|(_, path)| path.trim_start());
    is_read_only && path == Some(program)
}

/// A line such as `Rss:   188 kB`.
fn field_bytes(line: &str) -> Option<(&str, usize)> {
    let (name, value) = line.split_once(':')?;
    let kilobytes: usize = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((name, kilobytes * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Head, resident and anonymous kilobytes.
    fn smaps(mappings: &[(&str, usize, usize)]) -> String {
        let entry = |(head, resident, anonymous): &(&str, usize, usize)| {
            format!(
                "{head}\nSize: 999 kB\nRss: {resident} kB\nReferenced: 1 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr\n"
            )
        };
        mappings.iter().map(entry).collect()
    }

    #[test]
    fn only_pages_that_equal_the_program_file_are_returned() {
        let check = |head: &str, resident: usize, anonymous: usize, is_returned: bool| {
            let found = clean_mappings(&smaps(&[(head, resident, anonymous)]), "/opt/my tools/causeway");
            let expected = ProgramMapping { addresses: 0x1000..0x5000, resident_bytes: resident * 1024 };
            assert_eq!(found, if is_returned { vec![expected] } else { Vec::new() }, "{head}");
        };
        check("1000-5000 r-xp 00002000 fe:00 247003                 /opt/my tools/causeway", 12, 0, true);
        check("1000-5000 r--p 00000000 fe:00 247003                 /opt/my tools/causeway", 12, 0, true);
        // Not resident; with pages that a relocation or a debugger has written; writable; shared.
        check("1000-5000 r-xp 00002000 fe:00 247003                 /opt/my tools/causeway", 0, 0, false);
        check("1000-5000 r--p 00002000 fe:00 247003                 /opt/my tools/causeway", 12, 4, false);
        check("1000-5000 rw-p 00002000 fe:00 247003                 /opt/my tools/causeway", 12, 0, false);
        check("1000-5000 r-xs 00002000 fe:00 247003                 /opt/my tools/causeway", 12, 0, false);
        // Other files, and no file.
        check("1000-5000 r-xp 00002000 fe:00 247003                 /lib/libc.so.6", 12, 0, false);
        check("1000-5000 r-xp 00000000 00:00 0                      [vdso]", 12, 0, false);
        check("1000-5000 r--p 00000000 00:00 0 ", 12, 0, false);
    }

    #[test]
    fn every_mapping_is_judged_by_its_own_figures() {
        let text = smaps(&[
            ("1000-2000 r--p 00000000 fe:00 7 /bin/a", 4, 0),
            ("2000-3000 r--p 00001000 fe:00 7 /bin/a", 4, 4),
            ("3000-4000 r-xp 00002000 fe:00 7 /bin/a", 4, 0),
        ]);
        let starts: Vec<usize> =
            clean_mappings(&text, "/bin/a").iter().map(|found| found.addresses.start).collect();
        assert_eq!(starts, [0x1000, 0x3000]);
        let without = text.replace("Anonymous", "Unknown");
        assert!(clean_mappings(&without, "/bin/a").is_empty());
    }

    #[test]
    fn the_program_goes_on_after_its_pages_were_returned() {
        let constants = [include_str!("program_pages.rs"), env!("CARGO_PKG_NAME")].map(str::to_owned);
        let released = release().unwrap();
        assert!(released > 0, "this test's own code was resident");
        assert_eq!(
            [include_str!("program_pages.rs"), env!("CARGO_PKG_NAME")],
            constants.each_ref().map(String::as_str)
        );
        let resident = |smaps: &str, program: &str| -> usize {
            clean_mappings(smaps, program).iter().map(|mapping| mapping.resident_bytes).sum()
        };
        let program = fs::read_link("/proc/self/exe").unwrap();
        let now = resident(&fs::read_to_string("/proc/self/smaps").unwrap(), &program.to_string_lossy());
        assert!(now > 0 && now < released, "{now} of {released} bytes are resident again");
    }
}
