//! Documents as a user types them: the fenced blocks of Markdown pages in order, each with bash on the host that its fence names.
//!
//! A block is ```` ```sh HOST ````, ```` ```sh HOST background ```` for a program that stays, or ```` ```sh example ```` for one that is not
//! typed. `Row` says what a block must show. `Terminal` is a host of a `Net` with a `/var/lib`, a home folder, a hosts file and a
//! resolv.conf of its own; the debug binary on PATH takes the place of the install step.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::causeway::{Process, Ran, binary, finish, get, wait_for};
use crate::net::{Host, Net};

/// The words that a block must show, on standard output or error, with runs of spaces as one.
pub struct Row {
    /// The first line of the block begins so.
    pub begins: &'static str,
    pub typing: Typing,
    pub shows: &'static [&'static str],
    /// Words that must not be there.
    pub hides: &'static [&'static str],
}

impl Row {
    /// The block must not show these words.
    pub const fn without(self, hides: &'static [&'static str]) -> Row {
        Row { hides, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// Must succeed and show its words.
    Once,
    /// Must fail and show its words, as a page says that it does. The words are those of the refusal that is meant: a program that is missing
    /// fails too.
    Refused,
    /// Only looks: typed again until it succeeds and shows its words, as a user does who waits for them.
    UntilShown,
}

pub const fn once(begins: &'static str, shows: &'static [&'static str]) -> Row {
    Row { begins, typing: Typing::Once, shows, hides: &[] }
}

pub const fn refused(begins: &'static str, shows: &'static [&'static str]) -> Row {
    Row { begins, typing: Typing::Refused, shows, hides: &[] }
}

pub const fn until(begins: &'static str, shows: &'static [&'static str]) -> Row {
    Row { begins, typing: Typing::UntilShown, shows, hides: &[] }
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    pub language: String,
    /// The rest of the info string: the host, then perhaps `background`; or `example`.
    pub words: Vec<String>,
    pub text: String,
    /// Of its fence, from 1.
    pub line: usize,
}

impl Block {
    pub fn is_typed(&self) -> bool {
        self.language == "sh" && self.words != ["example"]
    }

    pub fn is_background(&self) -> bool {
        self.words.get(1).is_some_and(|word| word == "background")
    }

    pub fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
}

pub fn blocks(markdown: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let (words, text) = (words.collect(), String::new());
                open = Some(Block { language, words, text, line: number + 1 });
            }
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    ensure!(open.is_none(), "a fence is not closed");
    Ok(blocks)
}

/// Compares the blocks of pages with the tables of a test: every block is typed, on a host that the test has, or named with a reason.
pub fn check_blocks(
    blocks: &[Block],
    hosts: &[&str],
    rows: &[Row],
    not_typed: &[(&str, &str)],
) -> Result<()> {
    let examples: Vec<_> = blocks.iter().filter(|block| block.words == ["example"]).collect();
    ensure!(examples.len() == not_typed.len(), "not typed: {examples:?}");
    for (block, (begins, reason)) in examples.iter().zip(not_typed) {
        ensure!(block.first_line().starts_with(begins), "line {}: not {begins} ({reason})", block.line);
    }
    let typed: Vec<_> = blocks.iter().filter(|block| block.is_typed()).collect();
    for (block, row) in typed.iter().zip(rows) {
        ensure!(block.first_line().starts_with(row.begins), "line {}: not {}", block.line, row.begins);
        let words: Vec<&str> = block.words.iter().map(String::as_str).collect();
        let known = matches!(words[..], [host] | [host, "background"] if hosts.contains(&host));
        ensure!(known, "line {}: {words:?}", block.line);
    }
    ensure!(typed.len() == rows.len(), "{} blocks are typed, {} rows", typed.len(), rows.len());
    Ok(())
}

/// Types the blocks in order, each one against its row: as many as there are, so that a page of which nothing is typed fails. `after` is
/// called after each one, with its first line, for steps that a page describes in words.
pub fn type_pages(
    terminals: &mut [Terminal],
    blocks: &[Block],
    rows: &[Row],
    mut after: impl FnMut(&mut [Terminal], &Block, &Row) -> Result<()>,
) -> Result<()> {
    let typed: Vec<&Block> = blocks.iter().filter(|block| block.is_typed()).collect();
    ensure!(typed.len() == rows.len(), "{} blocks are typed, {} rows", typed.len(), rows.len());
    for (block, row) in typed.into_iter().zip(rows) {
        ensure!(block.first_line().starts_with(row.begins), "line {}: not {}", block.line, row.begins);
        let name = &block.words[0];
        let terminal = terminals.iter_mut().find(|terminal| terminal.host.name() == name);
        let terminal = terminal.with_context(|| format!("line {}: no host {name}", block.line))?;
        println!("{name} $ {}", block.first_line());
        match block.is_background() {
            true => terminal.run_in_background(block)?,
            false => terminal.type_and_look(block, row)?,
        }
        after(terminals, block, row)?;
    }
    Ok(())
}

/// A program of the list that this machine does not have.
pub fn missing_program(programs: &[&'static str]) -> Option<&'static str> {
    let absent = |program: &&str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        !found.is_ok_and(|output| output.status.success())
    };
    programs.iter().copied().find(absent)
}

/// Marks the resolv.conf of a host, so that no block is typed where it would change the machine's own.
const MARK: &str = "# a host of a page";

/// A host with what its user has typed so far: exported variables stay, and so does what runs in another terminal.
pub struct Terminal {
    pub host: Host,
    pub root: PathBuf,
    pub running: Option<Process>,
    path: String,
    starts: usize,
}

/// Gives the shell a `/var/lib` of its host's own and the variables of earlier blocks, then types the block. `ip netns exec` has
/// made a mount namespace, so that the machine does not see the mount. `set -e`: every line must succeed. A program that ends in the background
/// leaves the variables of later blocks as they are.
const PREPARE: &str = r#"
set -e
grep -q "^$3" /etc/resolv.conf
mount --bind "$1/var-lib" /var/lib
cd "$1/home"
if [ -e "$1/exports" ]; then . "$1/exports"; fi
. "$2"
if [ "$4" = front ]; then export -p > "$1/exports"; fi
"#;

impl Terminal {
    /// `names` are lines of the hosts file, `resolver` is the DNS server that the host has before a page changes it.
    pub fn open(net: &Net, name: &str, folder: &Path, names: &str, resolver: Ipv4Addr) -> Result<Terminal> {
        let host = net.host(name)?;
        let root = folder.join(name);
        for part in ["var-lib", "home", "bin"] {
            std::fs::create_dir_all(root.join(part))?;
        }
        std::os::unix::fs::symlink(binary()?, root.join("bin/causeway"))?;
        host.write_etc("hosts", &format!("127.0.0.1 localhost\n{names}"))?;
        host.write_etc("resolv.conf", &format!("{MARK}\nnameserver {resolver}\n"))?;
        let path = format!("{}:{}", root.join("bin").display(), std::env::var("PATH")?);
        Ok(Terminal { host, root, path, running: None, starts: 0 })
    }

    /// Puts a file or folder into the home of the user.
    pub fn give(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        Ok(std::os::unix::fs::symlink(path, self.root.join("home").join(name))?)
    }

    /// Copies a file between the homes of two users, as `scp` does. The files that pages copy are secrets: their block must have
    /// made one that no other user can read.
    pub fn copy_to(&self, name: &str, other: &Terminal) -> Result<()> {
        let file = self.root.join("home").join(name);
        let mode = file.metadata()?.permissions().mode() & 0o777;
        ensure!(mode & 0o077 == 0, "{name} is a secret and has the mode {mode:o}: write it with umask 077");
        std::fs::copy(file, other.root.join("home").join(name))?;
        Ok(())
    }

    pub fn type_text(&self, name: &str, text: &str) -> Result<Ran> {
        finish(self.command(name, text, "front")?, None)
    }

    /// Stops the program that runs in the background, as Ctrl-C does.
    pub fn interrupt(&mut self) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        interrupt(&running)?;
        wait_for("the program ends after Ctrl-C", || running.ended())?;
        Ok(())
    }

    fn command(&self, name: &str, text: &str, place: &str) -> Result<Command> {
        let file = self.root.join(format!("{name}.sh"));
        std::fs::write(&file, text)?;
        let mut command = self.host.command("bash");
        command.args(["-c", PREPARE, "bash"]).args([&self.root, &file]).args([MARK, place]);
        // Nothing of the environment of this test run that could lead a command elsewhere.
        command.env_clear().env("PATH", &self.path).env("HOME", self.root.join("home")).env("NO_COLOR", "1");
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn type_and_look(&self, block: &Block, row: &Row) -> Result<()> {
        let mut last = None;
        let mut shown = || {
            let ran = self.type_text(&format!("line-{}", block.line), &block.text).ok()?;
            let is_expected = (ran.code == 0) == (row.typing != Typing::Refused);
            let is_shown = is_expected && shows(&ran, row);
            last = Some(ran);
            is_shown.then_some(())
        };
        let is_shown = match row.typing {
            Typing::Once | Typing::Refused => shown().is_some(),
            Typing::UntilShown => wait_for(row.begins, shown).is_ok(),
        };
        let Row { typing, shows, hides, .. } = row;
        ensure!(
            is_shown,
            "line {}:\n{}{typing:?} {shows:?} without {hides:?}\n{}",
            block.line,
            block.text,
            told(last)
        );
        Ok(())
    }

    /// In another terminal. One that runs there is stopped with Ctrl-C first.
    fn run_in_background(&mut self, block: &Block) -> Result<()> {
        self.interrupt()?;
        self.starts += 1;
        let log = self.root.join(format!("background-{}.log", self.starts));
        let command = self.command(&format!("line-{}", block.line), &block.text, "background")?;
        let process = self.running.insert(Process::spawn(command, log)?);
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, 7445));
        let ready = wait_for(&block.text, || {
            if let Some(status) = process.ended() {
                return Some(Err(status));
            }
            let answer = self.host.inside(|| get(admin, "/readyz")).ok()?;
            (answer.0 == 200).then_some(Ok(()))
        })?;
        match ready {
            Ok(()) => Ok(()),
            Err(status) => bail!("line {}: ended with {status:?}\n{}", block.line, process.log()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for start in 1..=self.starts {
                let log = std::fs::read_to_string(self.root.join(format!("background-{start}.log")));
                eprintln!("--- {} {start} ---\n{}", self.host.name(), log.unwrap_or_default());
            }
        }
    }
}

/// Sends SIGINT to the program that the shell of a terminal runs.
fn interrupt(shell: &Process) -> Result<()> {
    let pid = shell.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().context("the shell runs no program")?;
    ensure!(Command::new("kill").args(["-INT", child]).status()?.success(), "cannot signal {child}");
    Ok(())
}

fn shows(ran: &Ran, row: &Row) -> bool {
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String =
        format!("{}\n{}", ran.stdout, ran.stderr).lines().map(|line| squeeze(line) + "\n").collect();
    row.shows.iter().all(|word| text.contains(word)) && !row.hides.iter().any(|word| text.contains(word))
}

fn told(ran: Option<Ran>) -> String {
    ran.map(|ran| format!("exit code {}\n{}\n{}", ran.code, ran.stdout, ran.stderr)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "```sh a\ncurl http://panel/\n```\n";

    #[test]
    fn a_page_whose_blocks_and_rows_differ_is_not_typed() {
        let typed = |rows: &[Row]| type_pages(&mut [], &blocks(PAGE).unwrap(), rows, |_, _, _| Ok(()));
        for (rows, expected) in [
            (&[][..], "1 blocks are typed, 0 rows"),
            (&[once("ping", &[])], "line 1: not ping"),
            (&[once("curl", &[])], "line 1: no host a"),
        ] {
            assert_eq!(typed(rows).unwrap_err().to_string(), expected);
        }
        // A page that has lost its blocks.
        assert!(type_pages(&mut [], &[], &[once("curl", &[])], |_, _, _| Ok(())).is_err());
    }

    #[test]
    fn words_must_be_there_and_others_must_not() {
        let ran =
            Ran { code: 0, stdout: "panel   cloud\nstock hamburg\n".into(), stderr: "1 object\n".into() };
        for (row, expected) in [
            (once("", &["panel cloud", "1 object"]), true),
            (once("", &["panel hamburg"]), false),
            (once("", &["panel cloud"]).without(&["stock"]), false),
            (once("", &["panel cloud"]).without(&["line-1"]), true),
        ] {
            assert_eq!(shows(&ran, &row), expected, "{:?} {:?}", row.shows, row.hides);
        }
    }
}
