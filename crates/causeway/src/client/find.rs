//! Selects the kubeconfig: a flag before the environment, a named file before the default one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};

use super::ApiConnectionArgs;
use crate::output;

const DATA_DIR_DEFAULT: &str = "/var/lib/causeway";
const KUBECONFIG_FILE: &str = "admin.kubeconfig";

/// One kubeconfig, or several to be merged as kubectl does, and its origin as text.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundKubeconfig {
    pub paths: Vec<PathBuf>,
    pub origin: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigNotFound {
    #[error("{origin} names {}, which does not exist", output::path(path))]
    Missing { origin: String, path: PathBuf },
    /// A folder on the way is closed to this user, so that not even the existence of the file is known.
    #[error(
        "{origin} names {}, which this user cannot read ({why}): run this as a user who may, \
         or use a kubeconfig of your own, from `causeway kubeconfig`",
        output::path(path)
    )]
    Unreadable { origin: String, path: PathBuf, why: String },
    #[error(
        "no kubeconfig: {} does not exist. Use --kubeconfig FILE, set KUBECONFIG, or run this on the cloud's host (as a user who may read its data dir)",
        output::path(path)
    )]
    Nothing { path: PathBuf },
}

impl FoundKubeconfig {
    pub fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        let mut merged = Kubeconfig::default();
        for path in &self.paths {
            merged = merged.merge(Kubeconfig::read_from(path)?)?;
        }
        Ok(merged)
    }
}

/// Decides from the flags and the environment; looks at the disk only to see whether files exist.
pub fn kubeconfig(
    flags: &ApiConnectionArgs,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<FoundKubeconfig, KubeconfigNotFound> {
    if let Some(path) = &flags.kubeconfig {
        return one(path, "--kubeconfig");
    }
    if let Some(data_dir) = &flags.data_dir {
        return one(&data_dir.join(KUBECONFIG_FILE), "--data-dir");
    }
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("CAUSEWAY_KUBECONFIG") {
        return one(Path::new(&path), "CAUSEWAY_KUBECONFIG");
    }
    if let Some(list) = variable("KUBECONFIG") {
        let all: Vec<PathBuf> =
            std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
        let paths: Vec<PathBuf> = all.iter().filter(|path| path.exists()).cloned().collect();
        return match (paths.is_empty(), all.into_iter().next()) {
            (true, Some(path)) => one(&path, "KUBECONFIG"),
            _ => {
                Ok(FoundKubeconfig { paths, origin: format!("{} (from KUBECONFIG)", list.to_string_lossy()) })
            }
        };
    }
    let data_dir = variable("CAUSEWAY_DATA_DIR").map_or_else(|| DATA_DIR_DEFAULT.into(), PathBuf::from);
    let path = data_dir.join(KUBECONFIG_FILE);
    one(&path, "the data dir").map_err(|error| match error {
        KubeconfigNotFound::Missing { .. } => KubeconfigNotFound::Nothing { path },
        error => error,
    })
}

fn one(path: &Path, origin: &str) -> Result<FoundKubeconfig, KubeconfigNotFound> {
    let origin = origin.to_owned();
    match path.try_exists() {
        Ok(true) => Ok(FoundKubeconfig {
            paths: vec![path.to_owned()],
            origin: format!("{} (from {origin})", output::path(path)),
        }),
        Ok(false) => Err(KubeconfigNotFound::Missing { origin, path: path.to_owned() }),
        Err(error) => {
            Err(KubeconfigNotFound::Unreadable { origin, path: path.to_owned(), why: error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_more_closely_wins() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["flag", "own", "kube", "admin.kubeconfig"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let path = |name: &str| folder.path().join(name);
        let check = |flag: Option<&str>, data_dir: bool, variables: &[(&str, &str)], expected: &str| {
            let flags = ApiConnectionArgs {
                kubeconfig: flag.map(path),
                data_dir: data_dir.then(|| folder.path().to_owned()),
                context: None,
            };
            let environment = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| path(value).into_os_string())
            };
            match kubeconfig(&flags, &environment) {
                Ok(found) => assert_eq!(found.paths, [path(expected)]),
                Err(error) => assert!(error.to_string().contains(expected), "{error}"),
            }
        };
        let own = ("CAUSEWAY_KUBECONFIG", "own");
        let kube = ("KUBECONFIG", "kube");
        check(Some("flag"), true, &[own, kube], "flag");
        check(None, true, &[own, kube], "admin.kubeconfig");
        check(None, false, &[own, kube], "own");
        check(None, false, &[kube], "kube");
        check(None, false, &[("CAUSEWAY_DATA_DIR", "")], "admin.kubeconfig");
        check(Some("missing"), false, &[], "--kubeconfig names");
        check(None, false, &[("CAUSEWAY_DATA_DIR", "empty")], "Use --kubeconfig FILE");
        check(None, false, &[("KUBECONFIG", "missing")], "KUBECONFIG names");
        // For root no folder is closed; a name that is too long for the file system is an error for every user.
        let unknowable = "x".repeat(300);
        check(Some(&unknowable), false, &[], "which this user cannot read");
        check(None, false, &[("KUBECONFIG", &unknowable)], "which this user cannot read");
        check(None, false, &[("CAUSEWAY_DATA_DIR", &unknowable)], "`causeway kubeconfig`");
    }
}
