//! Reads manifests: YAML and JSON, several documents, folders, stdin, lists.
//!
//! `gather` reads all files and `parse` checks them before the caller sends the first object. So a mistake in
//! one file means that nothing was changed.

mod json;
mod yaml;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use causeway_api::{ApiVersion, Kind, Object};
use serde_json::{Map, Value};

use crate::output;
use crate::problem::ManifestProblem;

/// A manifest is read whole; more than this is a mistake.
const TEXT_BYTES_MAX: u64 = 256 << 20;
/// Lists in lists are unrolled this deep.
const LIST_DEPTH_MAX: usize = 8;
/// Fields of `metadata` that the server writes. A file made with `get -o yaml` has them; an apply must not
/// own them.
const SERVER_FIELDS: [&str; 7] = [
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
    "selfLink",
    "deletionTimestamp",
];

/// A file that was read and not yet understood.
#[derive(Clone, Debug)]
pub struct ManifestText {
    pub name: String,
    pub form: ManifestFormat,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestFormat {
    Json,
    Yaml,
    /// Standard input, or a file with another ending.
    Unknown,
}

/// The location of an object: file, document (from 1) and, in a list, the item (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestLocation {
    pub file: String,
    pub document: usize,
    pub item: Option<usize>,
}

impl fmt::Display for ManifestLocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, document {}", self.file, self.document)?;
        self.item.map_or(Ok(()), |item| write!(out, ", item {item}"))
    }
}

/// One object to act on, as it was written, with the name the server will give it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub place: ManifestLocation,
    pub version: ApiVersion,
    pub kind: Kind,
    pub name: String,
    pub value: Value,
}

/// Reads files, folders (their .yaml, .yml and .json files, sorted) and `-` for standard input.
pub fn gather(paths: &[PathBuf], recursive: bool) -> anyhow::Result<Vec<ManifestText>> {
    let mut texts = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = Vec::new();
            std::io::stdin()
                .lock()
                .take(TEXT_BYTES_MAX)
                .read_to_end(&mut text)
                .context("standard input cannot be read")?;
            texts.push(ManifestText {
                name: "stdin".to_owned(),
                form: ManifestFormat::Unknown,
                text: utf8("stdin", text)?,
            });
        } else if path.is_dir() {
            let files = files_in(path, recursive)?;
            ensure!(!files.is_empty(), "folder {} has no .yaml, .yml or .json file", output::path(path));
            for file in files {
                texts.push(read(&file)?);
            }
        } else {
            texts.push(read(path)?);
        }
    }
    Ok(texts)
}

fn files_in(folder: &Path, recursive: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .with_context(|| format!("folder {} cannot be read", output::path(folder)))?;
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                files.extend(files_in(&entry, recursive)?);
            }
        } else if form_of(&entry) != ManifestFormat::Unknown {
            files.push(entry);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> anyhow::Result<ManifestText> {
    let name = output::path(path);
    let length = std::fs::metadata(path).with_context(|| format!("{name} cannot be read"))?.len();
    ensure!(length <= TEXT_BYTES_MAX, "{name} has {length} bytes, more than a manifest may have");
    let text = std::fs::read(path).with_context(|| format!("{name} cannot be read"))?;
    Ok(ManifestText { form: form_of(path), text: utf8(&name, text)?, name })
}

fn utf8(name: &str, bytes: Vec<u8>) -> anyhow::Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!("{name} is not UTF-8 text: byte {} is wrong", error.utf8_error().valid_up_to())
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn form_of(path: &Path) -> ManifestFormat {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => ManifestFormat::Json,
        Some("yaml" | "yml") => ManifestFormat::Yaml,
        _ => ManifestFormat::Unknown,
    }
}

/// Understands all texts, or says what is wrong with the first that cannot be understood.
pub fn parse(texts: &[ManifestText]) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for text in texts {
        let documents = documents(text)?;
        for (number, value) in documents.into_iter().enumerate() {
            let place = ManifestLocation { file: text.name.clone(), document: number + 1, item: None };
            // An empty document between two `---` is nothing to act on.
            if !value.is_null() {
                unroll(place, value, LIST_DEPTH_MAX, &mut manifests)?;
            }
        }
    }
    Ok(manifests)
}

/// The documents of one text, as values. JSON is tried first if the file extension is unknown: its errors are
/// clearer, and what only looks like JSON may still be YAML.
fn documents(text: &ManifestText) -> Result<Vec<Value>, ManifestProblem> {
    match text.form {
        ManifestFormat::Json => json::documents(&text.name, &text.text),
        ManifestFormat::Yaml => yaml::documents(&text.name, &text.text),
        ManifestFormat::Unknown if text.text.trim_start().starts_with(['{', '[']) => {
            json::documents(&text.name, &text.text)
                .or_else(|problem| yaml::documents(&text.name, &text.text).map_err(|_| problem))
        }
        ManifestFormat::Unknown => yaml::documents(&text.name, &text.text),
    }
}

fn unroll(
    place: ManifestLocation,
    value: Value,
    depth: usize,
    manifests: &mut Vec<Manifest>,
) -> anyhow::Result<()> {
    let Value::Object(mut fields) = value else {
        bail!("{place}: an object is expected, with `kind` and `apiVersion`")
    };
    let kind = string(&fields, "kind", &place)?;
    if !kind.ends_with("List") {
        manifests.push(manifest(place, fields)?);
        return Ok(());
    }
    ensure!(depth > 0, "{place}: lists are nested too deep");
    let items = match fields.remove("items") {
        Some(Value::Array(items)) => items,
        Some(Value::Null) | None => Vec::new(),
        Some(_) => bail!("{place}: `items` of a list must be a list"),
    };
    for (number, mut item) in items.into_iter().enumerate() {
        // Items of a typed list may leave out what the list says.
        if let (Some(kind), Value::Object(item)) =
            (kind.strip_suffix("List").filter(|kind| !kind.is_empty()), &mut item)
        {
            item.entry("kind").or_insert_with(|| kind.into());
            if let Some(version) = fields.get("apiVersion") {
                item.entry("apiVersion").or_insert_with(|| version.clone());
            }
        }
        let place = ManifestLocation { item: Some(number + 1), ..place.clone() };
        unroll(place, item, depth - 1, manifests)?;
    }
    Ok(())
}

fn manifest(place: ManifestLocation, mut fields: Map<String, Value>) -> anyhow::Result<Manifest> {
    let version = string(&fields, "apiVersion", &place)?;
    let Some(version) = ApiVersion::parse(&version).filter(|version| *version != ApiVersion::Events) else {
        bail!("{place}: apiVersion `{version}` is unknown: use `causeway.io/v1` or `v1`");
    };
    let word = string(&fields, "kind", &place)?;
    let Some(kind) = Kind::from_name(&word) else {
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let near = causeway_api::decode::nearest(known.iter().copied(), &word);
        let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        bail!("{place}: kind `{word}` is unknown: {near}use one of {}, List", known.join(", "));
    };
    fields.remove("status");
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|key, _| !SERVER_FIELDS.contains(&key.as_str()));
    }
    let value = Value::Object(fields);
    let decoded = Object::decode(kind, value.clone()).map_err(|errors| {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{place}: {} is wrong: {}", kind.name(), all.join("; "))
    })?;
    let mut object = decoded.object;
    object.default_fields();
    let name = object.name().to_owned();
    ensure!(!name.is_empty(), "{place}: this {} has no name: set metadata.name", kind.name());
    let mut value = value;
    value["metadata"]["name"] = name.clone().into();
    Ok(Manifest { place, version, kind, name, value })
}

fn string(fields: &Map<String, Value>, key: &str, place: &ManifestLocation) -> anyhow::Result<String> {
    match fields.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => bail!("{place}: `{key}` must be a string"),
        None => bail!("{place}: `{key}` is missing"),
    }
}

#[cfg(test)]
mod tests;
