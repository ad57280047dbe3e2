//! Create, update, patch and apply: reads, decides, commits; repeats when a concurrent write came first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use causeway_api::events::HARD_MAX;
use causeway_api::kinds::event;
use causeway_api::ownership::{self, FieldWriter, Subresource};
use causeway_api::{ApiVersion, Kind, Object, Status, Time, document, name, wire};
use causeway_store::{Op, Revision, StoreError, StoreRecord};
use serde_json::Value;

use super::admit::Draft;
use super::applied::read_applied;
use super::reserve::is_reservation_missing;
use super::{ObjectAuthor, Registry, StoredObject, address, admit, damaged, key};
use crate::body::ParsedBody;
use crate::errors::{self, ErrorSubject, RegistryError, unprocessable};
use crate::request::media::PatchFormat;
use crate::request::options::FieldValidation;

/// The result of a write.
#[derive(Debug)]
pub struct WriteResult {
    pub stored: StoredObject,
    pub created: bool,
    /// For `Warning` headers.
    pub warnings: Vec<String>,
    /// The stored form before the write; None for a new object.
    pub before: Option<Bytes>,
}

impl WriteResult {
    /// Returns true if the write changed the object.
    pub(super) fn changes_something(&self) -> bool {
        self.before.as_ref() != Some(&self.stored.value)
    }
}

/// A proposed object. A server-side apply has set the managedFields already.
struct Proposal {
    draft: Draft,
    owned: bool,
    warnings: Vec<String>,
}

/// The current state of an object.
struct Live {
    object: Object,
    /// The stored form as a value.
    document: Value,
    record: StoreRecord,
}

// Far more than writers of one object can collide by chance; a writer that loses more often gets an error.
const ATTEMPTS_MAX: usize = 32;
// As in Kubernetes: the number of attempts to generate a name that is free.
const NAME_ATTEMPTS_MAX: usize = 8;

impl Registry {
    pub async fn create(
        &self,
        author: ObjectAuthor<'_>,
        kind: Kind,
        parsed: ParsedBody,
        validation: FieldValidation,
    ) -> Result<WriteResult, RegistryError> {
        let read = admit::read(kind, author.version, parsed, validation)?;
        let meta = read.draft.object.metadata();
        if !meta.resource_version.is_empty() && meta.resource_version != "0" {
            return Err(
                Status::bad_request("resourceVersion should not be set on objects to be created").into()
            );
        }
        self.check_new_event(author.version, &read.draft.object)?;
        let stored = self.store_new(author, read.draft, false).await?;
        Ok(WriteResult { stored, created: true, warnings: read.warnings, before: None })
    }

    pub async fn update(
        &self,
        author: ObjectAuthor<'_>,
        (kind, name): (Kind, &str),
        subresource: Subresource,
        parsed: ParsedBody,
        validation: FieldValidation,
    ) -> Result<WriteResult, RegistryError> {
        let mut read = admit::read(kind, author.version, parsed, validation)?;
        let sent = &mut read.draft.object.metadata_mut().name;
        if sent.is_empty() {
            name.clone_into(sent);
        } else if sent != name {
            let message =
                format!("the name of the object ({sent}) does not match the name on the URL ({name})");
            return Err(Status::bad_request(message).into());
        }
        let about = ErrorSubject { version: author.version, kind, name };
        let decide = |live: &Live| {
            admit::check_preconditions(about, &live.object, live.record.revision, &read.draft.object)?;
            admit::check_revision_given(about, &read.draft.object)?;
            Ok(Proposal { draft: read.draft.clone(), owned: false, warnings: read.warnings.clone() })
        };
        self.change(author, about, subresource, decide).await
    }

    pub async fn patch(
        &self,
        author: ObjectAuthor<'_>,
        (kind, name): (Kind, &str),
        subresource: Subresource,
        (format, patch): (PatchFormat, ParsedBody),
        validation: FieldValidation,
    ) -> Result<WriteResult, RegistryError> {
        let about = ErrorSubject { version: author.version, kind, name };
        let decide = |live: &Live| {
            let value = client_value(about, &live.record)?;
            let value = super::patch::patched(format, shown_names(about, value), patch.value.clone())?;
            let parsed = ParsedBody { value, duplicates: patch.duplicates.clone() };
            let mut read = admit::read(kind, author.version, parsed, validation)?;
            keep_name(about, &mut read.draft.object)?;
            admit::check_preconditions(about, &live.object, live.record.revision, &read.draft.object)?;
            admit::check_revision_given(about, &read.draft.object)?;
            Ok(Proposal { draft: read.draft, owned: false, warnings: read.warnings })
        };
        self.change(author, about, subresource, decide).await
    }

    /// Server-side apply. Creates an absent object, except through a subresource.
    pub async fn apply(
        &self,
        author: ObjectAuthor<'_>,
        (kind, name): (Kind, &str),
        subresource: Subresource,
        (parsed, force): (ParsedBody, bool),
        validation: FieldValidation,
    ) -> Result<WriteResult, RegistryError> {
        let about = ErrorSubject { version: author.version, kind, name };
        let (applied, sent, warnings) = read_applied(about, parsed, validation)?;
        let writer = writer(author, subresource, self.now());
        for _ in 0..ATTEMPTS_MAX {
            let decide = |live: &Live| {
                admit::check_preconditions(about, &live.object, live.record.revision, &sent)?;
                let value = client_value(about, &live.record)?;
                let value = ownership::apply(&writer, Some(&value), &applied, force)
                    .map_err(|error| error.status())?;
                let draft = decode(about, value)?;
                Ok(Proposal { draft, owned: true, warnings: warnings.clone() })
            };
            match self.change(author, about, subresource, decide).await {
                Err(RegistryError::NotFound(_)) if subresource == Subresource::Main => {}
                changed => return changed,
            }
            if !sent.metadata().uid.is_empty() {
                return Err(admit::uid_conflict(about, &sent.metadata().uid, "").into());
            }
            // The request names a revision to replace and the object is absent: it was deleted concurrently.
            if !["", "0"].contains(&sent.metadata().resource_version.as_str()) {
                return Err(Status::object_modified(about.version, kind, name).into());
            }
            let value = ownership::apply(&writer, None, &applied, force).map_err(|error| error.status())?;
            let draft = decode(about, value)?;
            self.check_new_event(about.version, &draft.object)?;
            match self.store_new(author, draft, true).await {
                // Another writer created it between the two reads: it is changed instead.
                Err(RegistryError::AlreadyExists(_)) => {}
                created => {
                    return created.map(|stored| WriteResult {
                        stored,
                        created: true,
                        warnings: warnings.clone(),
                        before: None,
                    });
                }
            }
        }
        Err(Status::object_modified(about.version, kind, name).into())
    }

    /// Checks events that clients create: the rules of the newer version, and that there is room.
    fn check_new_event(&self, version: ApiVersion, object: &Object) -> Result<(), RegistryError> {
        let Object::Event(event) = object else { return Ok(()) };
        if self.event_count.load(Ordering::Relaxed) >= HARD_MAX {
            return Err(Status::too_many_requests(
                "there are too many events; the oldest are being dropped",
                5,
            )
            .into());
        }
        let errors = if version == ApiVersion::Events { event.check_group_fields() } else { Vec::new() };
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid(version, Kind::Event, object.name(), &errors).into()),
        }
    }

    /// Stores an object that does not exist yet.
    pub(super) async fn store_new(
        &self,
        author: ObjectAuthor<'_>,
        draft: Draft,
        owned: bool,
    ) -> Result<StoredObject, RegistryError> {
        let meta = draft.object.metadata();
        let generated = meta.name.is_empty() && !meta.generate_name.is_empty();
        for attempt in 1.. {
            match self.try_store_new(author, draft.clone(), owned).await {
                Err(RegistryError::AlreadyExists(_)) if generated && attempt < NAME_ATTEMPTS_MAX => {}
                stored => return stored,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Sets the author as the owner of the fields of a new object.
    pub(super) fn claim_new(
        &self,
        author: ObjectAuthor<'_>,
        object: &mut Object,
    ) -> Result<(), RegistryError> {
        let mut document = object.document(&Value::Null);
        claim(&writer(author, Subresource::Main, self.now()), None, &mut document)?;
        let entries = document.pointer_mut("/metadata/managedFields").map(Value::take);
        let entries = entries.unwrap_or(Value::Array(Vec::new()));
        object.metadata_mut().managed_fields = serde_json::from_value(entries).map_err(|error| {
            tracing::error!(name = object.name(), %error, "cannot parse the computed managedFields of the object");
            Status::internal("managedFields cannot be kept")
        })?;
        Ok(())
    }

    async fn try_store_new(
        &self,
        author: ObjectAuthor<'_>,
        Draft { mut object, mut written }: Draft,
        owned: bool,
    ) -> Result<StoredObject, RegistryError> {
        let (uid, random) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4().as_u128());
        let now = self.now();
        admit::fit_new(&mut object, now, uid.to_string(), random);
        let name = object.name().to_owned();
        let kind = object.kind();
        let about = ErrorSubject { version: author.version, kind, name: &name };
        self.settle_site(about, None, &mut object).await?;
        admit::check(about, &object, &written, None)?;
        ownership::confine(Subresource::Main, None, &mut written);
        let mut document = object.document(&written);
        if !owned {
            claim(&writer(author, Subresource::Main, now), None, &mut document)?;
        }
        let value = document::encode(&document);
        admit::check_size(about, value.len())?;

        let reservations = address::moves(None, Some(&object));
        if author.dry_run {
            self.rehearse_new(about, &object, &reservations).await?;
            return Ok(StoredObject { kind, revision: Revision(0), value });
        }
        let mut ops = vec![Op::Create { key: key(kind, &name), value: value.clone() }];
        ops.extend(reservations);
        match self.store.commit(ops).await {
            Ok(committed) => Ok(StoredObject { kind, revision: committed.revision, value }),
            Err(error) => Err(self.refuse_commit(about, &object, &error).await.into()),
        }
    }

    /// Checks for a dry run whether a commit would succeed.
    async fn rehearse_new(
        &self,
        about: ErrorSubject<'_>,
        object: &Object,
        reservations: &[Op],
    ) -> Result<(), RegistryError> {
        if self.read_record(about).await?.is_some() {
            return Err(Status::already_exists(about.version, about.kind, about.name).into());
        }
        Ok(self.rehearse_reservations(about, object, reservations).await?)
    }

    /// Changes an existing object. `decide` may be called several times, each time with a newer state.
    async fn change(
        &self,
        author: ObjectAuthor<'_>,
        about: ErrorSubject<'_>,
        subresource: Subresource,
        mut decide: impl FnMut(&Live) -> Result<Proposal, RegistryError>,
    ) -> Result<WriteResult, RegistryError> {
        let mut keep_freed = false;
        for _ in 0..ATTEMPTS_MAX {
            let live = self.live(about).await?;
            let proposal = decide(&live)?;
            let warnings = proposal.warnings;
            let new = self
                .settle_change(author, about, subresource, &live, (proposal.draft, proposal.owned))
                .await?;
            let Some((new, document)) = new else {
                let before = Some(live.record.value.clone());
                let stored = StoredObject::of(about.kind, live.record);
                return Ok(WriteResult { stored, created: false, warnings, before });
            };
            let gone = new.metadata().deletion_timestamp.is_some() && new.metadata().finalizers.is_empty();
            let value = document::encode(&document);
            admit::check_size(about, value.len())?;
            let (key, expected) = (key(about.kind, about.name), live.record.revision);
            let mut reservations = address::moves(Some(&live.object), (!gone).then_some(&new));
            if keep_freed {
                reservations.retain(|op| !matches!(op, Op::Delete { .. }));
            }
            if author.dry_run {
                self.rehearse_reservations(about, &new, &reservations).await?;
                let stored = StoredObject { kind: about.kind, revision: expected, value };
                let before = Some(live.record.value);
                return Ok(WriteResult { stored, created: false, warnings, before });
            }
            let mut ops = match gone {
                // The last finalizer was removed, so the object is deleted.
                true => vec![Op::Delete { key, expected: Some(expected) }],
                false => vec![Op::Update { key, value: value.clone(), expected }],
            };
            ops.extend(reservations);
            match self.store.commit(ops).await {
                Ok(committed) => {
                    let stored = StoredObject { kind: about.kind, revision: committed.revision, value };
                    let before = Some(live.record.value);
                    return Ok(WriteResult { stored, created: false, warnings, before });
                }
                Err(error) if is_reservation_missing(&error) => keep_freed = true,
                Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(self.refuse_commit(about, &new, &error).await.into()),
            }
        }
        Err(Status::object_modified(about.version, about.kind, about.name).into())
    }

    /// Changes an object for one of Causeway's own parts, without preconditions.
    pub(super) async fn change_object(
        &self,
        author: ObjectAuthor<'_>,
        about: ErrorSubject<'_>,
        subresource: Subresource,
        mut decide: impl FnMut(&Object) -> Object,
    ) -> Result<WriteResult, RegistryError> {
        let decide = |live: &Live| {
            // The document keeps the fields that clients wrote.
            let draft = Draft { object: decide(&live.object), written: live.document.clone() };
            Ok(Proposal { draft, owned: false, warnings: Vec::new() })
        };
        self.change(author, about, subresource, decide).await
    }

    /// Returns the object to store after a change and its document, with all fields that only the server
    /// sets; `None` when nothing changes.
    async fn settle_change(
        &self,
        author: ObjectAuthor<'_>,
        about: ErrorSubject<'_>,
        subresource: Subresource,
        live: &Live,
        (Draft { object: proposed, written }, owned): (Draft, bool),
    ) -> Result<Option<(Object, Value)>, RegistryError> {
        // For a status write `fit_change` keeps the old entries; apply has made new ones.
        let entries = owned.then(|| proposed.metadata().managed_fields.clone());
        let mut new = admit::fit_change(&live.object, proposed, subresource);
        if let Some(entries) = entries {
            new.metadata_mut().managed_fields = entries;
        }
        self.settle_site(about, Some(&live.object), &mut new).await?;
        admit::check(about, &new, &written, Some(&live.object))?;
        let mut document = admit::document(&live.document, &mut new, written, subresource);
        if !owned {
            claim(&writer(author, subresource, self.now()), Some(&live.document), &mut document)?;
        }
        Ok((!ownership::keep_old_if_same(&live.document, &mut document)).then_some((new, document)))
    }

    pub(super) async fn read_record(
        &self,
        about: ErrorSubject<'_>,
    ) -> Result<Option<StoreRecord>, RegistryError> {
        // An invalid name belongs to no object, and may be no key that a store accepts.
        if name::check(about.name).is_err() {
            return Ok(None);
        }
        let key = key(about.kind, about.name);
        Ok(self.store.get(&key).await.map_err(|error| errors::from_store(&error, about))?)
    }

    async fn live(&self, about: ErrorSubject<'_>) -> Result<Live, RegistryError> {
        let record = self.read_record(about).await?;
        let record = record.ok_or_else(|| Status::not_found(about.version, about.kind, about.name))?;
        let object =
            Object::from_stored(about.kind, &record.value).map_err(|error| damaged(about.kind, &error))?;
        let document = serde_json::from_slice(&record.value).map_err(|error| damaged(about.kind, &error))?;
        Ok(Live { object, document, record })
    }
}

fn writer(author: ObjectAuthor<'_>, subresource: Subresource, now: Time) -> FieldWriter<'_> {
    FieldWriter { manager: author.manager, api_version: author.version, subresource, now }
}

/// Updates the managedFields of `new` for the change `old` → `new`.
fn claim(writer: &FieldWriter<'_>, old: Option<&Value>, new: &mut Value) -> Result<(), RegistryError> {
    ownership::update(writer, old, new).map_err(|error| unprocessable(&error).into())
}

fn client_value(about: ErrorSubject<'_>, record: &StoreRecord) -> Result<Value, RegistryError> {
    wire::client_value(about.kind, about.version, record.revision.0, &record.value)
        .map_err(|error| damaged(about.kind, &error).into())
}

fn decode(about: ErrorSubject<'_>, value: Value) -> Result<Draft, RegistryError> {
    let decoded = Object::decode(about.kind, value)
        .map_err(|errors| Status::invalid(about.version, about.kind, about.name, &errors))?;
    let mut object = decoded.object;
    keep_name(about, &mut object)?;
    Ok(Draft { object, written: decoded.document })
}

/// Returns a client's value with the field names of its version.
fn shown_names(about: ErrorSubject<'_>, mut value: Value) -> Value {
    if about.version == ApiVersion::Events {
        event::rename(&mut value, about.version);
    }
    value
}

/// Refuses a patch that renames the object.
pub(super) fn keep_name(about: ErrorSubject<'_>, object: &mut Object) -> Result<(), RegistryError> {
    let name = &mut object.metadata_mut().name;
    if name.is_empty() {
        about.name.clone_into(name);
    }
    if name == about.name {
        return Ok(());
    }
    let message =
        format!("the name of the object ({name}) does not match the name on the URL ({})", about.name);
    Err(Status::bad_request(message).into())
}

// Asserts at compile time that a registry can be shared between tasks; a loss would show up far from here.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Registry>>();
};
