//! kubectl as tests use it: a line as one would type it, and what must be seen.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testlab::causeway::{Ran, finish};

/// The programs to test with: the one on the machine, and Kubernetes 1.20 when the lab has built it.
pub fn programs() -> Vec<PathBuf> {
    let machine = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join("kubectl"))
        .find(|program| program.exists());
    let old = cached();
    for (program, name, cure) in [
        (&machine, "the machine's kubectl", "there is none on PATH"),
        (&old, "kubectl 1.20", "`tests/k8s/lab/build-kubernetes kubectl` builds it once"),
    ] {
        if program.is_none() {
            println!("SKIPPED: {name}: {cure}");
        }
    }
    let found: Vec<PathBuf> = [machine, old].into_iter().flatten().collect();
    assert!(!found.is_empty(), "no kubectl at all: `.ci/needs test` brings one");
    found
}

/// The folder with the programs of Kubernetes that the lab has built.
pub fn cache() -> Option<PathBuf> {
    let chosen = std::env::var_os("CAUSEWAY_CACHE").map(PathBuf::from);
    chosen.or_else(|| std::env::home_dir().map(|home| home.join(".cache/causeway")))
}

/// Looks only: building takes minutes and is nothing for a test.
fn cached() -> Option<PathBuf> {
    let folders = std::fs::read_dir(cache()?).ok()?.flatten();
    let mut built: Vec<PathBuf> = folders
        .filter(|folder| folder.file_name().to_string_lossy().starts_with("kubernetes-1.20."))
        .map(|folder| folder.path().join("bin/kubectl"))
        .filter(|program| program.exists())
        .collect();
    // A newer recipe sorts behind an older one.
    built.sort();
    built.pop()
}

pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    /// 32 for version 1.32.
    pub minor: u32,
}

/// The expected result of a line.
pub enum Expected<'a> {
    /// Exactly this, and nothing else.
    Prints(&'a str),
    /// Succeeds, and each part is somewhere in what it prints.
    Shows(&'a [&'a str]),
    /// Succeeds, and each part is somewhere on standard error.
    Warns(&'a [&'a str]),
    /// Ends with exit code 1, and each part is somewhere on standard error.
    Refused(&'a [&'a str]),
}

impl Kubectl {
    /// `home` keeps its caches, so that no two clouds are mistaken for one another.
    pub fn new(program: &Path, kubeconfig: &Path, home: PathBuf) -> Kubectl {
        std::fs::create_dir_all(&home).unwrap();
        let mut kubectl = Kubectl { program: program.into(), kubeconfig: kubeconfig.into(), home, minor: 0 };
        let version: serde_json::Value =
            serde_json::from_str(&kubectl.ok("version --client -o json")).unwrap();
        let minor = version["clientVersion"]["minor"].as_str().unwrap();
        kubectl.minor = minor.trim_end_matches('+').parse().unwrap();
        kubectl
    }

    /// The same program with the kubeconfig of another user.
    pub fn with(&self, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(&self.program, kubeconfig, self.home.clone())
    }

    /// A command that is not started yet. Parts of the line in single quotes stay together.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(split(line)).env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        // It leaves copies of what it could not save among the temporary files.
        command.env("TMPDIR", &self.home).env_remove("KUBECACHEDIR").stdin(Stdio::null());
        command
    }

    pub fn run(&self, line: &str) -> Ran {
        finish(self.command(line), None).unwrap()
    }

    fn run_with(&self, input: &str, line: &str) -> Ran {
        // kubectl takes input that begins with a brace for JSON, even when only YAML can be meant.
        finish(self.command(line), Some(&format!("---\n{input}"))).unwrap()
    }

    /// Standard output of a line that must succeed.
    pub fn ok(&self, line: &str) -> String {
        self.run(line).success().unwrap_or_else(|error| panic!("kubectl {line}: {error}"))
    }

    /// The same, with `input` on standard input.
    pub fn ok_with(&self, input: &str, line: &str) -> String {
        let ran = self.run_with(input, line);
        ran.success().unwrap_or_else(|error| panic!("kubectl {line}: {error}"))
    }

    /// Standard error of a line that must fail.
    pub fn fails(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, 1, "kubectl {line}: {ran:?}");
        ran.stderr
    }

    /// Starts a line that waits, and returns when its watch is open: what happens from now on is seen by it.
    pub fn start(&self, line: &str) -> Child {
        let mut command = self.command(&format!("{line} -v=6"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("watch=true")), "kubectl {line}: no watch was opened");
        // The output must be read on, or kubectl would wait for us.
        std::thread::spawn(move || lines.for_each(drop));
        child
    }

    /// One row: the sentence that must be true, the line, what must be seen.
    pub fn row(&self, sentence: &str, line: &str, expected: Expected) {
        check(sentence, line, &self.run(line), &expected);
    }

    pub fn row_with(&self, sentence: &str, input: &str, line: &str, expected: Expected) {
        check(sentence, line, &self.run_with(input, line), &expected);
    }
}

fn check(sentence: &str, line: &str, ran: &Ran, expected: &Expected) {
    let (code, text, parts) = match expected {
        Expected::Prints(exact) => {
            assert_eq!(
                (ran.code, ran.stdout.as_str()),
                (0, *exact),
                "{sentence}\nkubectl {line}\n{}",
                ran.stderr
            );
            return;
        }
        Expected::Shows(parts) => (0, &ran.stdout, parts),
        Expected::Warns(parts) => (0, &ran.stderr, parts),
        Expected::Refused(parts) => (1, &ran.stderr, parts),
    };
    assert_eq!(ran.code, code, "{sentence}\nkubectl {line}\n{}\n{}", ran.stdout, ran.stderr);
    for part in *parts {
        assert!(text.contains(part), "{sentence}\nkubectl {line}\n`{part}` is missing in\n{text}");
    }
}

fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (place, part) in line.split('\'').enumerate() {
        if place % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[test]
fn a_line_is_split_as_a_shell_would() {
    assert_eq!(split("get esites -o 'a b'  -w"), ["get", "esites", "-o", "a b", "-w"]);
}
