//! Reads the tracked files and checks each on its own: headers, names, imports that a crate must not have.
//!
//! Git lists the tracked files, so that build output and scratch files do not count.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::Finding;

/// The tracked files of the repository, as text.
pub struct Tree {
    pub root: PathBuf,
    pub files: Vec<SourceFile>,
}

pub struct SourceFile {
    pub path: String,
    pub text: String,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Tree> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("cannot run git ls-files")?;
        if !listed.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr));
        }
        let mut files = Vec::new();
        for path in String::from_utf8(listed.stdout)?.split('\0').filter(|path| !path.is_empty()) {
            // Deleted but not yet committed, or not text: neither can be untidy.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                files.push(SourceFile { path: path.to_owned(), text });
            }
        }
        Ok(Tree { root: root.to_owned(), files })
    }
}

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    Ok(tree.files.iter().flat_map(check_file).collect())
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |text: String| findings.push(Finding::new(&file.path, text));
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    if name.ends_with(".rs") {
        if !file.text.starts_with("//! ") {
            found("has no header: open with `//! ` and say what this file is for".to_owned());
        }
        if name == "mod.rs" {
            found("a folder is described by the file beside it, not by mod.rs".to_owned());
        }
    }
    if is_script(file) && !file.text.lines().nth(1).is_some_and(|line| line.starts_with("# ")) {
        found("has no header: say in its second line what this script is for".to_owned());
    }
    let stem = name.split('.').next().unwrap_or(name);
    if name.ends_with(".rs") && ["util", "utils", "common", "helpers", "manager", "misc"].contains(&stem) {
        found(format!("`{stem}` says nothing about the module: name the thing or the decision"));
    }
    for (folder, word, why) in FORBIDDEN {
        let is_allowed = ALLOWED.iter().any(|(path, allowed, _)| *path == file.path && allowed == word);
        if file.path.starts_with(folder) && name.ends_with(".rs") && !is_allowed {
            for (number, line) in file.text.lines().enumerate() {
                if line.contains(word) && !line.trim_start().starts_with("//") {
                    found(format!("line {}: `{word}`: {why}", number + 1));
                }
            }
        }
    }
    findings
}

fn is_script(file: &SourceFile) -> bool {
    file.text.starts_with("#!")
}

/// Folder, word, reason. Matched outside comments.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("crates/causeway-api/src", "tokio::", "this crate has no async runtime"),
    ("crates/causeway-api/src", "std::net::Tcp", "this crate has no sockets"),
    ("crates/causeway-api/src", "SystemTime::now", "this crate has no clock: take the time as an argument"),
    ("crates/causeway-api/src", "Timestamp::now", "this crate has no clock: take the time as an argument"),
    ("crates/causeway-api/src", "Instant::now", "this crate has no clock: take the time as an argument"),
    ("crates/causeway-netmap/src", "tokio::", "this crate has no async runtime"),
    ("crates/causeway-netmap/src", "std::fs", "this crate has no files"),
    (
        "crates/causeway-netmap/src",
        "SystemTime::now",
        "this crate has no clock: take the time as an argument",
    ),
    ("crates/causeway-netmap/src", "Instant::now", "this crate has no clock: take the time as an argument"),
    ("crates/causeway-store/src", "causeway_api", "the store keeps bytes and knows no kinds"),
    ("crates/", "unsafe {", "few files need unsafe: name it below with its argument when one does"),
];

/// File, word, and the reason why the word is allowed there.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "crates/causeway-gateway/src/presence_namespace/namespace.rs",
        "unsafe {",
        "unshare(2) has no safe form; only the network namespace of one thread is unshared, and no table of files",
    ),
    (
        "crates/causeway-gateway/src/neighbour_proxy/packet_socket.rs",
        "unsafe {",
        "addresses and memberships of packet sockets have no safe form; each structure and buffer outlives the call",
    ),
    (
        "crates/causeway-gateway/src/tun/device.rs",
        "unsafe {",
        "the ioctls of a TUN device have no safe form; each takes a value or a structure that outlives the call",
    ),
    (
        "crates/causeway-gateway/src/tun/socket.rs",
        "unsafe {",
        "UDP_SEGMENT, UDP_GRO and recvmmsg have no safe form that keeps an error to one peer; all memory outlives its call",
    ),
    (
        "crates/causeway-store/src/model.rs",
        "causeway_api",
        "re-exports Revision alone, which request options and watch history share with the store",
    ),
    (
        "crates/causeway-store/src/lib.rs",
        "causeway_api",
        "imports the locks that ignore poisoning, which all crates share",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check_file(&SourceFile { path: path.to_owned(), text: text.to_owned() }).len()
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        assert_eq!(findings("crates/x/src/lib.rs", "//! Keeps things.\n"), 0);
        assert_eq!(findings("crates/x/src/lib.rs", "use std::fmt;\n"), 1);
        assert_eq!(findings("bench/run", "#!/bin/sh\n# Runs it.\n"), 0);
        assert_eq!(findings("bench/run", "#!/bin/sh\nset -e\n"), 1);
    }

    #[test]
    fn a_file_is_named_after_what_is_in_it() {
        assert_eq!(findings("crates/x/src/util.rs", "//! Things.\n"), 1);
        assert_eq!(findings("crates/x/src/tun/mod.rs", "//! Things.\n"), 1);
    }

    #[test]
    fn unsafe_stands_only_where_it_is_argued_for() {
        let text = "//! A.\nlet a = unsafe { b() };\n";
        assert_eq!(findings("crates/causeway-gateway/src/presence_namespace/namespace.rs", text), 0);
        assert_eq!(findings("crates/causeway-gateway/src/presence_namespace/veth.rs", text), 1);
    }

    #[test]
    fn words_have_no_clock() {
        assert_eq!(findings("crates/causeway-api/src/a.rs", "//! A.\nlet now = SystemTime::now();\n"), 1);
        assert_eq!(findings("crates/causeway-api/src/a.rs", "//! A.\n// SystemTime::now is absent.\n"), 0);
        assert_eq!(findings("crates/causeway-cloud/src/a.rs", "//! A.\nlet now = SystemTime::now();\n"), 0);
    }
}
