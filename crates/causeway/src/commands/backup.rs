//! `causeway backup`: everything the cloud keeps, as one file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use causeway_api::management::paths;
use causeway_daemon::data_dir::AtomicFile;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::client::ApiConnectionArgs;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway backup causeway-$(date +%F).backup
  causeway backup - | gpg -e -r ops > causeway.backup.gpg

The file holds the sealed CA key, not the key that opens it: copy DATA_DIR/seal.key of the cloud as well, and keep it elsewhere.
It holds every revocation until now. Later revocations are in DATA_DIR/revocations.jsonl: copy that file often, and `restore` applies it.";

/// Write a consistent backup of the running cloud
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File to write, or - for standard output; an existing file is replaced when the backup is complete
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let response = api.send(http::Method::GET, paths::BACKUP, "*/*", None).await?;
    let mut stream = response.into_body().into_data_stream();
    let mut target = BackupDestination::open(&arguments.file)?;
    let mut seen = Seen::default();
    while let Some(chunk) = stream.next().await {
        let chunk =
            chunk.with_context(|| format!("{} broke off after {} bytes", api.server(), seen.bytes))?;
        target.write_all(&chunk)?;
        seen.take(&chunk);
    }
    let summary = seen.summary()?;
    target.finish(&arguments.file)?;
    output::note(&format!("{}: {summary}", output::path(&arguments.file)));
    // A cloud from before the field does not say where its seal key is.
    let ca = api.get(paths::CA).await.unwrap_or_default();
    output::note(&reminder(ca["sealKey"].as_str()));
    Ok(ExitCode::SUCCESS)
}

/// The files that a restore needs beside the backup.
fn reminder(seal_key: Option<&str>) -> String {
    let seal_key = seal_key.map_or_else(|| "DATA_DIR/seal.key".to_owned(), output::plain);
    format!(
        "Copy {seal_key} from the cloud's host as well, and keep it apart from the backup: without it the CA in the backup cannot be opened \
         and every edge has to join anew. Copy DATA_DIR/revocations.jsonl often: it holds what is revoked after the backup"
    )
}

/// The destination of the backup. A file gets its name only when it is complete.
enum BackupDestination {
    File(AtomicFile),
    Standard(std::io::Stdout),
}

impl BackupDestination {
    fn open(path: &Path) -> anyhow::Result<BackupDestination> {
        if path.as_os_str() == "-" {
            return Ok(BackupDestination::Standard(std::io::stdout()));
        }
        let file =
            AtomicFile::create(path).with_context(|| format!("{} cannot be written", output::path(path)))?;
        Ok(BackupDestination::File(file))
    }

    fn write_all(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            BackupDestination::File(file) => file.write_all(bytes).context("the backup cannot be written"),
            BackupDestination::Standard(out) => Ok(out.write_all(bytes)?),
        }
    }

    fn finish(self, path: &Path) -> anyhow::Result<()> {
        match self {
            BackupDestination::File(file) => {
                file.commit().with_context(|| format!("{} cannot be written", output::path(path)))
            }
            BackupDestination::Standard(mut out) => Ok(out.flush()?),
        }
    }
}

/// Tracks the stream: enough of the first and the last line to see that the backup is complete, and its size.
#[derive(Default)]
struct Seen {
    bytes: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

/// Headers and trailers are short; records need not be kept.
const LINE_KEPT_BYTES: usize = 4096;

impl Seen {
    fn take(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        if self.first.len() < LINE_KEPT_BYTES {
            self.first.extend_from_slice(&chunk[..chunk.len().min(LINE_KEPT_BYTES)]);
        }
        self.last.extend_from_slice(&chunk[chunk.len().saturating_sub(LINE_KEPT_BYTES)..]);
        let surplus = self.last.len().saturating_sub(LINE_KEPT_BYTES);
        self.last.drain(..surplus);
    }

    /// Says what is in the backup, or that it is not whole. `restore` verifies the digest.
    fn summary(&self) -> anyhow::Result<String> {
        let line = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
        let header = self.first.split(|byte| *byte == b'\n').next().and_then(line);
        let trailer = self.last.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().and_then(line);
        let (Some(header), Some(trailer)) = (header, trailer) else {
            bail!("the server sent something that is no backup")
        };
        let Some(records) = trailer["count"].as_u64() else {
            bail!("the backup broke off after {} bytes", self.bytes)
        };
        ensure!(self.last.ends_with(b"\n"), "the backup broke off after {} bytes", self.bytes);
        Ok(format!("{records} objects, {} bytes, revision {}", self.bytes, header["revision"]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reminder_names_the_seal_key() {
        assert!(reminder(Some("/srv/causeway/seal.key")).contains("Copy /srv/causeway/seal.key from"));
        assert!(reminder(None).contains("Copy DATA_DIR/seal.key from"));
    }

    #[test]
    fn a_backup_that_broke_off_is_no_backup() {
        let whole = "{\"format\":\"causeway-backup\",\"revision\":7}\n{\"key\":\"a/b\"}\n{\"count\":1,\"sha256\":\"x\"}\n";
        let summary = |text: &str, step: usize| {
            let mut seen = Seen::default();
            text.as_bytes().chunks(step).for_each(|chunk| seen.take(chunk));
            seen.summary().map_err(|error| error.to_string())
        };
        for step in [1, 7, 1000] {
            assert_eq!(
                summary(whole, step).unwrap(),
                format!("1 objects, {} bytes, revision 7", whole.len())
            );
        }
        for end in [0, 10, whole.len() - 1, 60] {
            assert!(summary(&whole[..end], 1000).is_err(), "{end}");
        }
    }
}
