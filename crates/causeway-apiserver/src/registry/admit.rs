//! Admission of objects: the rules that need only the object and the one it replaces.
//!
//! Pure. `read` parses the client's body into an object, `fit_new` and `fit_change` set the fields that only
//! the server may set, and `check` validates. Ownership of fields and rules across objects are checked
//! elsewhere.

use causeway_api::decode::nearest_field;
use causeway_api::kinds::{NAMESPACE, event};
use causeway_api::ownership::{self, Subresource};
use causeway_api::{ApiVersion, FieldError, FieldReason, Kind, Object, Status, Time, document};
use causeway_store::Revision;
use serde_json::Value;

use crate::body::ParsedBody;
use crate::errors::{self, ErrorSubject};
use crate::request::options::{FieldValidation, parse_revision};

// As in Kubernetes: a name has at most 63 characters, five of them random.
const GENERATED_PREFIX_MAX: usize = 58;

/// An object and the document that its writer sent, which tells a zero value from an absent one.
#[derive(Debug, Clone)]
pub struct Draft {
    pub object: Object,
    /// A document without kind and apiVersion; null when there is nothing but the object.
    pub written: Value,
}

impl Draft {
    /// Makes the draft of an object that a part of Causeway made.
    pub fn ours(object: Object) -> Draft {
        Draft { object, written: Value::Null }
    }
}

/// The object that a client's bytes contain.
#[derive(Debug)]
pub struct DecodedBody {
    pub draft: Draft,
    /// For `Warning` headers.
    pub warnings: Vec<String>,
}

/// Reads an object of `kind` from a body that may say that it is something else.
pub fn read(
    kind: Kind,
    version: ApiVersion,
    parsed: ParsedBody,
    validation: FieldValidation,
) -> Result<DecodedBody, Status> {
    check_type(kind, version, &parsed.value)?;
    check_namespace(kind, &parsed.value)?;
    let name = name_in(&parsed.value).to_owned();
    let decoded = Object::decode_or_explain(kind, stored_names(version, parsed.value))
        .map_err(|errors| Status::invalid(version, kind, &name, &errors))?;
    let warnings = judge_fields(kind, version, &decoded.unknown, &parsed.duplicates, validation)?;
    Ok(DecodedBody { draft: Draft { object: decoded.object, written: decoded.document }, warnings })
}

/// Handles unknown and repeated fields as the client asks: ignores them, warns, or refuses.
pub fn judge_fields(
    kind: Kind,
    version: ApiVersion,
    unknown: &[String],
    duplicates: &[String],
    validation: FieldValidation,
) -> Result<Vec<String>, Status> {
    let repeated = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
    let unknown = unknown.iter().map(|path| match nearest_field(kind, path) {
        Some(nearest) => format!("unknown field \"{path}\", did you mean \"{nearest}\"?"),
        None => format!("unknown field \"{path}\""),
    });
    let findings: Vec<String> = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => unknown.chain(repeated).collect(),
    };
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(findings),
        FieldValidation::Strict if findings.is_empty() => Ok(findings),
        FieldValidation::Strict => Err(Status::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {}",
            version.version(),
            findings.join(", ")
        ))),
    }
}

/// Checks that the body names the kind and one of the versions of its path. Both versions name the same
/// objects.
pub fn check_type(kind: Kind, version: ApiVersion, value: &Value) -> Result<(), Status> {
    let Some(fields) = value.as_object() else {
        return Err(Status::bad_request(format!("the body must be one object of kind {kind}")));
    };
    let shown = |value: &Value| value.to_string().chars().take(100).collect::<String>();
    match fields.get("apiVersion") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() || is_version_of(kind, text) => {}
        Some(other) => {
            return Err(Status::bad_request(format!(
                "the API version in the data ({}) does not match the expected API version ({})",
                shown(other).trim_matches('"'),
                version.as_str()
            )));
        }
    }
    match fields.get("kind") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(text)) if text.is_empty() || text == kind.name() => Ok(()),
        Some(other) => Err(Status::bad_request(format!(
            "the kind in the data ({}) does not match the expected kind ({kind})",
            shown(other).trim_matches('"')
        ))),
    }
}

fn is_version_of(kind: Kind, text: &str) -> bool {
    ApiVersion::parse(text).is_some_and(|version| kind.versions().contains(&version))
}

/// Returns a value with the field names of the stored form.
pub fn stored_names(version: ApiVersion, mut value: Value) -> Value {
    if version == ApiVersion::Events {
        event::rename(&mut value, ApiVersion::Core);
    }
    value
}

/// Checks that the namespace in the body of a namespaced object is the one of the path, or absent.
fn check_namespace(kind: Kind, value: &Value) -> Result<(), Status> {
    let named = value.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    if !kind.is_namespaced() || ["", NAMESPACE].contains(&named) {
        return Ok(());
    }
    let why = "the namespace of the provided object does not match the namespace sent on the request";
    Err(Status::bad_request(why))
}

fn name_in(value: &Value) -> &str {
    value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// Sets the server's fields of a new object; creation metadata from the client is ignored. `random` feeds
/// generated names.
pub fn fit_new(object: &mut Object, now: Time, uid: String, random: u128) {
    object.default_fields();
    *object.status_mut() = Default::default();
    let meta = object.metadata_mut();
    if meta.name.is_empty() && !meta.generate_name.is_empty() {
        meta.name = generated_name(&meta.generate_name, random);
    }
    meta.uid = uid;
    meta.creation_timestamp = Some(now);
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.generation = 1;
    meta.resource_version.clear();
    meta.self_link.clear();
    // Fields that derive from a generated name: EServer copies it into a field of its own.
    object.default_fields();
}

/// No vowels, so that no words appear; no 0, 1 or 3, because they are misread. As in Kubernetes.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

fn generated_name(prefix: &str, mut random: u128) -> String {
    let mut name: String = prefix.chars().take(GENERATED_PREFIX_MAX).collect();
    for _ in 0..5 {
        name.push(char::from(SUFFIX_LETTERS[(random % SUFFIX_LETTERS.len() as u128) as usize]));
        random /= SUFFIX_LETTERS.len() as u128;
    }
    name
}

/// Checks the client's preconditions, which `new` carries, against the stored object.
pub fn check_preconditions(
    about: ErrorSubject<'_>,
    old: &Object,
    revision: Revision,
    new: &Object,
) -> Result<(), Status> {
    let meta = new.metadata();
    if !meta.uid.is_empty() && meta.uid != old.metadata().uid {
        return Err(uid_conflict(about, &meta.uid, &old.metadata().uid));
    }
    // A revision of 0 means none, as in Kubernetes.
    if !meta.resource_version.is_empty()
        && meta.resource_version != "0"
        && parse_revision("metadata.resourceVersion", &meta.resource_version)? != revision
    {
        return Err(Status::object_modified(about.version, about.kind, about.name));
    }
    Ok(())
}

/// Checks that a replacement names the revision that it replaces, or it would undo concurrent writes.
/// Kubernetes demands it of custom resources, with this text.
pub fn check_revision_given(about: ErrorSubject<'_>, new: &Object) -> Result<(), Status> {
    if !["", "0"].contains(&new.metadata().resource_version.as_str()) {
        return Ok(());
    }
    let error = FieldError {
        path: "metadata.resourceVersion".into(),
        reason: FieldReason::Invalid,
        message: "Invalid value: 0x0: must be specified for an update".into(),
    };
    Err(Status::invalid(about.version, about.kind, about.name, &[error]))
}

pub fn uid_conflict(about: ErrorSubject<'_>, wanted: &str, found: &str) -> Status {
    let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
    Status::conflict(about.version, about.kind, about.name, why)
}

/// Confines a change to its subresource and keeps the fields that only the server may set. `document` sets
/// the generation later, when nothing else changes.
pub fn fit_change(old: &Object, mut new: Object, subresource: Subresource) -> Object {
    match subresource {
        Subresource::Status => {
            let mut fitted = old.clone();
            *fitted.status_mut() = std::mem::take(new.status_mut());
            fitted
        }
        Subresource::Main => {
            *new.status_mut() = old.status().clone();
            let (meta, before) = (new.metadata_mut(), old.metadata());
            meta.uid.clone_from(&before.uid);
            meta.creation_timestamp = before.creation_timestamp;
            meta.deletion_timestamp = before.deletion_timestamp;
            meta.deletion_grace_period_seconds = before.deletion_grace_period_seconds;
            meta.generation = before.generation;
            meta.generate_name.clone_from(&before.generate_name);
            meta.resource_version.clear();
            meta.self_link.clear();
            new.default_fields();
            new
        }
    }
}

/// Returns the document of `new`, confined to its subresource, with the generation that follows from the
/// change.
pub fn document(old: &Value, new: &mut Object, mut written: Value, subresource: Subresource) -> Value {
    ownership::confine(subresource, Some(old), &mut written);
    let mut document = new.document(&written);
    if subresource == Subresource::Main && !document::same_fields(old, &document) {
        new.metadata_mut().generation += 1;
        document["metadata"]["generation"] = new.metadata().generation.into();
    }
    document
}

/// Returns everything that is wrong with the object itself, and with the zero values that were written.
pub fn check(
    about: ErrorSubject<'_>,
    new: &Object,
    written: &Value,
    old: Option<&Object>,
) -> Result<(), Status> {
    let mut errors = new.validate(old);
    let zeros = document::refused_zeros(about.kind, written);
    let zeros: Vec<FieldError> =
        zeros.into_iter().filter(|zero| !errors.iter().any(|error| error.path == zero.path)).collect();
    errors.extend(zeros);
    if let Some(old) = old {
        errors.extend(added_finalizers(old, new));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(about.version, about.kind, about.name, &errors))
    }
}

fn added_finalizers(old: &Object, new: &Object) -> Option<FieldError> {
    let (before, after) = (old.metadata(), new.metadata());
    before.deletion_timestamp?;
    let added: Vec<&str> = after
        .finalizers
        .iter()
        .filter(|name| !before.finalizers.contains(name))
        .map(String::as_str)
        .collect();
    let why = "no new finalizers can be added if the object is being deleted, found new finalizers";
    (!added.is_empty()).then(|| FieldError::forbidden("metadata.finalizers", format!("{why} {added:?}")))
}

pub fn check_size(about: ErrorSubject<'_>, stored_bytes: usize) -> Result<(), Status> {
    let bytes_max = about.kind.object_bytes_max();
    if stored_bytes <= bytes_max { Ok(()) } else { Err(errors::object_too_large(about, bytes_max)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> Object {
        let mut object = Object::empty(Kind::ESite);
        object.metadata_mut().name = name.into();
        object
    }

    const ABOUT: ErrorSubject<'static> =
        ErrorSubject { version: ApiVersion::Group, kind: Kind::ESite, name: "a" };

    #[test]
    fn the_body_must_be_of_the_kind_of_its_path() {
        let check = |body: Value, code: u16| {
            let found =
                check_type(Kind::ESite, ApiVersion::Group, &body).map_or_else(|status| status.code, |()| 200);
            assert_eq!(found, code, "{body}");
        };
        check(serde_json::json!({"kind": "ESite", "apiVersion": "v1"}), 200);
        check(serde_json::json!({"kind": "ESite", "apiVersion": "causeway.io/v1"}), 200);
        check(serde_json::json!({}), 200);
        check(serde_json::json!({"kind": "EGateway"}), 400);
        check(serde_json::json!({"apiVersion": "causeway.io/v2"}), 400);
        check(serde_json::json!({"kind": 7}), 400);
        check(serde_json::json!([]), 400);
        check(Value::Null, 400);
    }

    #[test]
    fn a_generated_name_keeps_its_prefix_and_its_length() {
        let name = generated_name("presence-", 0);
        assert_eq!(name, "presence-bbbbb");
        assert_ne!(generated_name("presence-", 1), name);
        assert_eq!(generated_name(&"x".repeat(100), 7).len(), 63);
    }

    #[test]
    fn clients_cannot_write_what_is_the_servers() {
        let mut object = site("a");
        object.metadata_mut().uid = "mine".into();
        object.metadata_mut().generation = 99;
        object.status_mut().observed_generation = 7;
        fit_new(&mut object, Time::from_second(1), "ours".into(), 0);
        let meta = object.metadata();
        assert_eq!((meta.uid.as_str(), meta.generation, object.status().observed_generation), ("ours", 1, 0));

        let mut new = site("a");
        new.metadata_mut().labels.insert("x".into(), "y".into());
        new.status_mut().observed_generation = 7;
        let main = fit_change(&object, new.clone(), Subresource::Main);
        assert_eq!((main.metadata().uid.as_str(), main.status().observed_generation), ("ours", 0));
        assert_eq!(main.metadata().labels.len(), 1);
        let status = fit_change(&object, new, Subresource::Status);
        assert_eq!((status.metadata().labels.len(), status.status().observed_generation), (0, 7));
    }

    #[test]
    fn the_generation_counts_changes_of_fields_and_of_nothing_else() {
        let check = |subresource: Subresource, change: &str, generation: i64| {
            let mut old = site("a");
            old.metadata_mut().generation = 1;
            let stored = old.document(&serde_json::json!({"subnets": []}));
            let mut written = stored.clone();
            let mut new = old.clone();
            match change {
                "zero" => drop(written.as_object_mut().unwrap().remove("subnets")),
                "label" => drop(new.metadata_mut().labels.insert("x".into(), "y".into())),
                "status" => new.status_mut().observed_generation = 1,
                _ => {}
            }
            let document = document(&stored, &mut new, written, subresource);
            assert_eq!(
                (new.metadata().generation, &document["metadata"]["generation"]),
                (generation, &generation.into()),
                "{change}"
            );
        };
        check(Subresource::Main, "", 1);
        check(Subresource::Main, "label", 1);
        check(Subresource::Main, "zero", 2);
        check(Subresource::Status, "status", 1);
        check(Subresource::Status, "zero", 1);
    }

    #[test]
    fn preconditions_are_compared_when_they_are_given() {
        let mut old = site("a");
        old.metadata_mut().uid = "u".into();
        let code = |uid: &str, version: &str| {
            let mut new = site("a");
            new.metadata_mut().uid = uid.into();
            new.metadata_mut().resource_version = version.into();
            check_preconditions(ABOUT, &old, Revision(5), &new).map_or_else(|status| status.code, |()| 200)
        };
        assert_eq!(code("", ""), 200);
        assert_eq!(code("u", "5"), 200);
        assert_eq!(code("", "0"), 200);
        assert_eq!(code("v", "5"), 409);
        assert_eq!(code("u", "4"), 409);
        assert_eq!(code("u", "x"), 400);
    }

    #[test]
    fn an_object_that_is_going_gets_no_new_finalizers() {
        let mut old = site("a");
        old.metadata_mut().finalizers = vec!["example.com/a".into()];
        let mut new = old.clone();
        new.metadata_mut().finalizers.push("example.com/b".into());
        assert!(check(ABOUT, &new, &Value::Null, Some(&old)).is_ok());
        old.metadata_mut().deletion_timestamp = Some(Time::from_second(1));
        assert_eq!(check(ABOUT, &new, &Value::Null, Some(&old)).unwrap_err().code, 422);
        new.metadata_mut().finalizers.clear();
        assert!(check(ABOUT, &new, &Value::Null, Some(&old)).is_ok());
    }
}
