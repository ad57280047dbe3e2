//! `causeway restore`: restores a backup into an empty store and applies the revocation log, while no cloud runs on it.
//!
//! A restore that fails changes nothing, and leaves a mark that keeps `causeway cloud` from making a new CA.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use causeway_cloud::identity::earlier_life;
use causeway_cloud::identity::replay::{self, Replayed};
use causeway_cloud::identity::revocation_log::{self, RevocationEntry, RevocationLog};
use causeway_daemon::{DataDir, ProcessRole};
use causeway_store::{RestoreTarget, StoreError};

use super::cloud::store_spec;
use crate::config::{self, CloudLayer, Config, Layer};
use crate::duration::age;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway restore causeway.backup --data-dir /var/lib/causeway
  causeway restore causeway.backup --data-dir /var/lib/causeway --store etcd=http://a:2379,http://b:2379
  gpg -d causeway.backup.gpg | causeway restore - --data-dir /var/lib/causeway
  causeway restore causeway.backup --data-dir /var/lib/causeway --revocations /mnt/old/revocations.jsonl     on another host

Put DATA_DIR/seal.key back as well: without it the CA in the backup cannot be opened.
What was revoked, deleted or used since the backup is in DATA_DIR/revocations.jsonl and is applied again; on another host, give the
file of the lost one (of every replica) with --revocations.
Gateways notice that the cloud went back in time: the epoch is raised.";

/// Fill an empty store from a backup; the cloud must not run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File made by `causeway backup`, or - for standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Data dir of the cloud
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, required = true)]
    data_dir: PathBuf,
    /// Revocation log of the lost cloud (its DATA_DIR/revocations.jsonl), beside the one in the data dir; may be repeated
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    revocations: Vec<PathBuf>,
    /// Store: `sqlite` or `etcd=http://HOST:2379,...`
    #[arg(long, value_name = "SPEC")]
    store: Option<config::StoreSetting>,
    /// Configuration file of the cloud
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let flags = Layer {
        data_dir: Some(arguments.data_dir.clone()),
        cloud: CloudLayer { store: arguments.store, ..CloudLayer::default() },
        ..Layer::default()
    };
    let config = Config::load(flags, arguments.config.as_deref())?;
    let path = match arguments.file.as_os_str() == "-" {
        true => Path::new("/dev/stdin"),
        false => &arguments.file,
    };
    let file = tokio::fs::File::open(path)
        .await
        .with_context(|| format!("{} cannot be read", output::path(&arguments.file)))?;
    // Holding the lock means that no cloud runs on this data dir.
    let data_dir = DataDir::open_as(&config.data_dir.value, ProcessRole::Cloud)?;
    // Before anything is restored: a wrong path shall not leave a store without its revocations.
    let log = Log::read(&data_dir.join(revocation_log::FILE), &arguments.revocations)?;
    earlier_life::begin_restore(data_dir.path())?;
    let target = RestoreTarget::open(store_spec(&config)).await?;
    let restored = target.store().import(file).await;
    if matches!(restored, Err(StoreError::NotEmpty { .. })) {
        earlier_life::end_restore(data_dir.path());
    }
    let restored = restored.with_context(|| {
        format!("{} was not restored, nothing was changed", output::path(&arguments.file))
    })?;
    let now = SystemTime::now();
    log.keep(now).await?;
    let replayed =
        replay::replay(target.store(), &log.entries, now, config.cloud.expired_grace.value.0).await;
    let replayed = replayed.context(match target.is_temporary() {
        true => "the revocation log cannot be applied to the restored store, nothing was changed",
        false => {
            "the backup is restored, but what was revoked since is not applied yet; `causeway cloud` does it when it starts"
        }
    })?;
    target.finish().await?;
    earlier_life::end_restore(data_dir.path());
    output::print_line(&format!(
        "restored {} objects, revision {}, epoch {}",
        restored.records, restored.revision, restored.epoch
    ))?;
    output::print_line(&returned_to(restored.time, jiff::Timestamp::now()))?;
    if log.found.is_empty() {
        output::note(&without_log(restored.time, &data_dir.join(revocation_log::FILE)));
    } else {
        output::print(&told(&log, &replayed))?;
    }
    if !data_dir.join("seal.key").exists() && config.cloud.seal_key.value.is_none() {
        output::note("Warning: seal.key is not in the data dir: put it there before the cloud starts");
    }
    Ok(ExitCode::SUCCESS)
}

/// The revocation logs that were found, one after the other.
struct Log {
    own: PathBuf,
    found: Vec<PathBuf>,
    entries: Vec<RevocationEntry>,
    /// The number of logs that end with an incomplete line.
    torn: usize,
}

impl Log {
    fn read(own: &Path, given: &[PathBuf]) -> anyhow::Result<Log> {
        let mut log = Log { own: own.to_owned(), found: Vec::new(), entries: Vec::new(), torn: 0 };
        for path in std::iter::once(own).chain(given.iter().map(PathBuf::as_path)) {
            let Some(content) = revocation_log::read(path)? else {
                anyhow::ensure!(path == own, "the revocation log {} does not exist", output::path(path));
                continue;
            };
            anyhow::ensure!(
                path == own || !content.entries.is_empty() || !content.is_torn,
                "{} is no revocation log: it is called {} in the data dir of a cloud",
                output::path(path),
                revocation_log::FILE
            );
            log.found.push(path.to_owned());
            log.entries.extend(content.entries);
            log.torn += usize::from(content.is_torn);
        }
        Ok(log)
    }

    /// The given logs become part of the data dir's own log: the next restore must know them, too.
    async fn keep(&self, now: SystemTime) -> anyhow::Result<()> {
        let kept = async {
            let (own, _) = RevocationLog::open(self.own.clone(), now)?;
            anyhow::Ok(own.append(self.entries.clone(), now).await?)
        };
        kept.await
            .with_context(|| format!("the revocation log {} cannot be written", output::path(&self.own)))
    }
}

fn returned_to(time: Option<i64>, now: jiff::Timestamp) -> String {
    match time.and_then(|time| jiff::Timestamp::from_second(time).ok()) {
        Some(time) => format!(
            "the store is as it was at {time}, {} ago: objects and tokens made since are gone",
            age(now.as_second() - time.as_second())
        ),
        None => "the backup does not say when it was made: an older program wrote it".to_owned(),
    }
}

fn told(log: &Log, replayed: &Replayed) -> String {
    let names: Vec<String> = log.found.iter().map(output::path).collect();
    let mut text = format!("applied again from {}:", names.join(", "));
    let mut part = |what: &str, items: &[String]| {
        if !items.is_empty() {
            let shown: Vec<String> = items.iter().take(SHOWN_MAX).map(|item| output::plain(item)).collect();
            let more = if items.len() > SHOWN_MAX { ", ..." } else { "" };
            text.push_str(&format!("\n  {} {what}: {}{more}", items.len(), shown.join(", ")));
        }
    };
    part("gateways revoked", &replayed.gateways);
    part("certificates revoked", &replayed.certificates);
    part("join tokens used or closed", &replayed.join_tokens);
    part("API tokens deleted", &replayed.api_tokens);
    if replayed.count() == 0 {
        text.push_str(
            " nothing: the backup knows of everything in it, or it holds nothing; \
                       what was revoked since and is not in this log is believed again",
        );
    }
    if log.torn > 0 {
        text.push_str(&format!(
            "\n  {} incomplete last lines are left out: the cloud stopped while it wrote them",
            log.torn
        ));
    }
    text.push('\n');
    text
}

/// Of each kind; the rest is in the file.
const SHOWN_MAX: usize = 20;

fn without_log(time: Option<i64>, path: &Path) -> String {
    let since = time.and_then(|time| jiff::Timestamp::from_second(time).ok());
    let since = since.map_or_else(|| "the backup".to_owned(), |time| time.to_string());
    format!(
        "Warning: there is no revocation log ({}): whatever was revoked, deleted or used after {since} is believed again: \
         keys of gateways, admin certificates, join tokens, API tokens.\n  \
         Put the log of the lost cloud there (of every replica, one behind the other) before the cloud starts: it applies it. \
         Without it, revoke anew: causeway revoke GATEWAY, causeway token list, causeway kubeconfig --list",
        output::path(path)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_and_what_was_applied_are_told() {
        let now: jiff::Timestamp = "2026-11-17T18:00:00Z".parse().unwrap();
        let time = now.as_second() - 10_800;
        let text = returned_to(Some(time), now);
        assert!(text.contains("2026-11-17T15:00:00Z") && text.contains("3h ago"), "{text}");
        assert!(returned_to(None, now).contains("does not say"));
        let log = Log { own: "own".into(), found: vec!["own".into()], entries: Vec::new(), torn: 1 };
        let text = told(&log, &Replayed::default());
        assert!(text.contains("nothing") && text.contains("1 incomplete last lines"), "{text}");
        let replayed = Replayed {
            gateways: vec!["oslo".into()],
            join_tokens: (0..30).map(|number| number.to_string()).collect(),
            ..Replayed::default()
        };
        let text = told(&log, &replayed);
        assert!(text.contains("1 gateways revoked: oslo\n") && text.contains("30 join tokens"), "{text}");
        let text = without_log(Some(time), Path::new("/d/revocations.jsonl"));
        for part in ["/d/revocations.jsonl", "2026-11-17T15:00:00Z", "believed again", "causeway revoke"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
