//! `causeway apply`: objects from files into the cloud, by server-side apply.
//!
//! Everything is read and understood before the first request. Kinds go in the order they are written;
//! objects of one kind that follow each other go side by side, and are reported in their order.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use serde_json::Value;

use crate::client::{self, ApiClient, ApiConnectionArgs, CallError};
use crate::manifest::{self, Manifest};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway apply -f site.yaml
  causeway apply -f examples/ -f more.json
  cat objects.yaml | causeway apply -f -
  causeway apply -f examples/ --dry-run           what would change, checked by the server
  causeway apply -f old.yaml --validate warn      fields that no kind has are dropped with a warning";

/// Create or change objects so that they are as the files say
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File, folder, or - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, value_hint = clap::ValueHint::AnyPath)]
    files: Vec<PathBuf>,
    /// Read folders recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Submit the request without persisting it; print what would change
    #[arg(long)]
    dry_run: bool,
    /// Take over fields that another field manager owns
    #[arg(long)]
    force_conflicts: bool,
    /// Treatment of unknown fields: refuse the object, drop the fields with a warning, or drop them silently
    #[arg(long, value_enum, value_name = "HOW", default_value_t, num_args = 1, require_equals = false)]
    validate: Validate,
    /// Name that is recorded as the owner of the fields
    #[arg(long, value_name = "NAME", default_value = FIELD_MANAGER)]
    field_manager: String,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub const FIELD_MANAGER: &str = "causeway";

/// The server's answer to fields that the kind does not have. A misspelt field is a policy that is not attached, so the
/// default refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Validate {
    #[default]
    #[value(alias = "true")]
    Strict,
    Warn,
    #[value(alias = "false")]
    Ignore,
}

impl Validate {
    /// The value of the query parameter `fieldValidation`.
    fn parameter(self) -> &'static str {
        match self {
            Validate::Strict => "Strict",
            Validate::Warn => "Warn",
            Validate::Ignore => "Ignore",
        }
    }
}

/// Options of an apply.
#[derive(Clone, Debug)]
pub struct ApplyMode {
    pub field_manager: String,
    pub force_conflicts: bool,
    pub dry_run: bool,
    pub validate: Validate,
}

impl Default for ApplyMode {
    fn default() -> ApplyMode {
        ApplyMode {
            field_manager: FIELD_MANAGER.to_owned(),
            force_conflicts: false,
            dry_run: false,
            validate: Validate::default(),
        }
    }
}

/// The effect of an apply on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    Created,
    Configured,
    Unchanged,
}

impl ApplyOutcome {
    pub fn name(self) -> &'static str {
        match self {
            ApplyOutcome::Created => "created",
            ApplyOutcome::Configured => "configured",
            ApplyOutcome::Unchanged => "unchanged",
        }
    }
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let texts = manifest::gather(&arguments.files, arguments.recursive)?;
    let manifests = manifest::parse(&texts)?;
    ensure!(!manifests.is_empty(), "there is no object in what was given with -f");
    let api = arguments.connection.connect().await?;
    let manner = ApplyMode {
        field_manager: arguments.field_manager,
        force_conflicts: arguments.force_conflicts,
        dry_run: arguments.dry_run,
        validate: arguments.validate,
    };
    let mut failed = false;
    for group in groups(&manifests) {
        let applied = group.iter().map(|manifest| apply(&api, manifest, &manner));
        let mut applied = stream::iter(applied).buffered(AT_ONCE_MAX).zip(stream::iter(group));
        while let Some((applied, manifest)) = applied.next().await {
            match applied {
                Ok(outcome) => {
                    let note = if manner.dry_run { " (dry run)" } else { "" };
                    output::print_line(&format!("{} {}{note}", title(manifest), outcome.name()))?;
                }
                // A refused object does not stop the apply; an unreachable server does.
                Err(error @ CallError::Refused { .. }) => {
                    failed = true;
                    output::note(&format!("error: {} ({}): {error}", title(manifest), manifest.place));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Requests under way at the same time: enough to fill a group commit, far from any server's limit.
const AT_ONCE_MAX: usize = 16;

/// Cuts the objects where the kind changes, because an admission may look at earlier objects of other
/// kinds, and where a name is repeated, because the later one counts.
fn groups(manifests: &[Manifest]) -> Vec<&[Manifest]> {
    let (mut groups, mut start, mut names) = (Vec::new(), 0, HashSet::new());
    for (place, manifest) in manifests.iter().enumerate() {
        let new_kind = manifests[start].kind != manifest.kind;
        if new_kind || !names.insert(manifest.name.as_str()) {
            groups.push(&manifests[start..place]);
            start = place;
            names = HashSet::from([manifest.name.as_str()]);
        }
    }
    groups.push(&manifests[start..]);
    groups
}

fn title(manifest: &Manifest) -> String {
    format!("{}/{}", manifest.kind.singular(), output::plain(&manifest.name))
}

/// Applies one object and says what that changed.
pub async fn apply(
    api: &ApiClient,
    manifest: &Manifest,
    manner: &ApplyMode,
) -> Result<ApplyOutcome, CallError> {
    let path = client::object(manifest.version, manifest.kind, &manifest.name);
    let before = api.find(&path).await?;
    let query = client::query(&[
        ("fieldManager", Some(&manner.field_manager)),
        ("force", manner.force_conflicts.then_some("true")),
        ("dryRun", manner.dry_run.then_some("All")),
        ("fieldValidation", Some(manner.validate.parameter())),
    ]);
    let body = Some((client::APPLY_PATCH, manifest.value.to_string().into_bytes()));
    let answer = api.call(Method::PATCH, &format!("{path}{query}"), client::JSON, body).await?;
    Ok(outcome(before.as_ref(), answer.code, &answer.value))
}

/// Compares the object before and after the apply.
fn outcome(before: Option<&Value>, code: StatusCode, after: &Value) -> ApplyOutcome {
    let Some(before) = before else { return ApplyOutcome::Created };
    let revision = |value: &Value| value["metadata"]["resourceVersion"].clone();
    if code == StatusCode::CREATED {
        ApplyOutcome::Created
    } else if revision(before) == revision(after) && same(before, after) {
        ApplyOutcome::Unchanged
    } else {
        ApplyOutcome::Configured
    }
}

/// The same but for who owns what: a dry run keeps the revision, so the content decides.
fn same(before: &Value, after: &Value) -> bool {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            metadata.remove("generation");
        }
        value
    };
    bare(before) == bare(after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::{ManifestFormat, ManifestText};

    #[test]
    fn objects_go_side_by_side_only_where_their_order_does_not_matter() {
        let check = |written: &[(&str, &str)], expected: &[usize]| {
            let documents = written.iter().map(|(kind, name)| {
                format!("---\n{{kind: {kind}, apiVersion: v1, metadata: {{name: {name}}}}}\n")
            });
            let text =
                ManifestText { name: "f".to_owned(), form: ManifestFormat::Yaml, text: documents.collect() };
            let manifests = manifest::parse(&[text]).unwrap();
            let sizes: Vec<usize> = groups(&manifests).iter().map(|group| group.len()).collect();
            assert_eq!(sizes, expected, "{written:?}");
        };
        check(&[("ESite", "a"), ("ESite", "b")], &[2]);
        check(&[("ESite", "a"), ("EPolicy", "a"), ("ESite", "b")], &[1, 1, 1]);
        check(&[("ESite", "a"), ("ESite", "b"), ("ESite", "a"), ("ESite", "b")], &[2, 2]);
        check(&[("ESite", "a")], &[1]);
    }

    #[test]
    fn the_outcome_follows_from_what_was_there() {
        let object = |revision: &str, ip: &str| json!({"metadata": {"resourceVersion": revision}, "ip": ip});
        let old = object("5", "a");
        let check = |before, code, after: &Value, expected| {
            assert_eq!(outcome(before, StatusCode::from_u16(code).unwrap(), after), expected);
        };
        check(None, 201, &object("6", "a"), ApplyOutcome::Created);
        check(Some(&old), 200, &object("5", "a"), ApplyOutcome::Unchanged);
        check(Some(&old), 200, &object("6", "b"), ApplyOutcome::Configured);
        check(Some(&old), 200, &object("5", "b"), ApplyOutcome::Configured);
        check(Some(&old), 201, &object("7", "a"), ApplyOutcome::Created);
    }
}
