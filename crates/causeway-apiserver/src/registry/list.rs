//! Lists objects: one snapshot, in pages, filtered.
//!
//! Records are returned as they are stored; they are parsed only for a selector.

use causeway_api::selector::{SelectableFields, Selector};
use causeway_api::{ApiVersion, Kind, Status, name};
use causeway_store::{ListRange, Revision, StoreError, StoreRecord};

use super::delete::name_of;
use super::token::ContinueToken;
use super::{Registry, key, prefix};
use crate::errors::{self, ErrorSubject, RegistryError};
use crate::request::options::{ListOptions, VersionMatch};

/// One page of a list.
#[derive(Debug)]
pub struct ListPage {
    pub records: Vec<StoreRecord>,
    /// The revision of the snapshot.
    pub revision: Revision,
    /// The token of the next page.
    pub next: Option<String>,
    pub remaining: Option<u64>,
}

// Records read at once when a selector may exclude most of them.
const SCAN_PAGE: usize = 1_000;

impl Registry {
    pub async fn list(
        &self,
        version: ApiVersion,
        kind: Kind,
        options: &ListOptions,
    ) -> Result<ListPage, RegistryError> {
        let about = ErrorSubject { version, kind, name: "" };
        let token =
            options.continue_token.as_deref().map(|text| ContinueToken::parse(kind, text)).transpose()?;
        let at = self.revision_to_list(about, options.at, token.as_ref()).await?;
        let start = Start { at, after: token.as_ref().map(|token| key(kind, &token.after)) };
        let read = if let Some(name) = options.selector.fields.exact_name().filter(|_| start.is_newest()) {
            self.list_one(kind, name, &options.selector).await
        } else if options.selector.is_empty() {
            self.list_plain(kind, start, options.limit).await
        } else {
            self.list_selected(kind, start, options).await
        };
        read.map_err(|error| match (error, token) {
            (StoreError::Compacted { .. }, Some(token)) => continue_expired(kind, token).into(),
            (error, _) => errors::from_store(&error, about).into(),
        })
    }

    async fn revision_to_list(
        &self,
        about: ErrorSubject<'_>,
        at: VersionMatch,
        token: Option<&ContinueToken>,
    ) -> Result<Option<Revision>, RegistryError> {
        if let Some(token) = token {
            return Ok(token.at);
        }
        match at {
            VersionMatch::Newest | VersionMatch::Any => Ok(None),
            VersionMatch::Exact(revision) => Ok(Some(revision)),
            VersionMatch::NotOlderThan(revision) => {
                let current = self.revision(about).await?;
                if revision > current {
                    Err(errors::too_large_revision(revision, current).into())
                } else {
                    Ok(None)
                }
            }
        }
    }

    async fn list_plain(
        &self,
        kind: Kind,
        start: Start,
        limit: Option<usize>,
    ) -> Result<ListPage, StoreError> {
        let page = ListRange { at: start.at, after: start.after, limit };
        let listing = self.store.list(&prefix(kind), page).await?;
        let next = next_token(kind, listing.revision, &listing.records, listing.remaining > 0);
        let remaining = next.is_some().then_some(listing.remaining);
        Ok(ListPage { records: listing.records, revision: listing.revision, next, remaining })
    }

    /// Reads until the page is full: a client that asked for 500 matches should not page through empty
    /// responses.
    async fn list_selected(
        &self,
        kind: Kind,
        mut start: Start,
        options: &ListOptions,
    ) -> Result<ListPage, StoreError> {
        let mut records = Vec::new();
        let limit = options.limit.unwrap_or(usize::MAX);
        loop {
            let page = ListRange { at: start.at, after: start.after.take(), limit: Some(SCAN_PAGE) };
            let listing = self.store.list(&prefix(kind), page).await?;
            start.at = Some(listing.revision);
            start.after = listing.records.last().map(|record| record.key.to_string());
            let mut more = listing.remaining > 0;
            let count = listing.records.len();
            for (index, record) in listing.records.into_iter().enumerate() {
                if selects(&options.selector, &record.value) {
                    records.push(record);
                    if records.len() == limit {
                        more |= index + 1 < count;
                        break;
                    }
                }
            }
            if records.len() >= limit || !more {
                let next = next_token(kind, listing.revision, &records, more);
                return Ok(ListPage { records, revision: listing.revision, next, remaining: None });
            }
        }
    }

    /// Lists one object for a selector that names it: `kubectl get -w NAME` and informers of one object do
    /// this.
    async fn list_one(&self, kind: Kind, name: &str, selector: &Selector) -> Result<ListPage, StoreError> {
        // The revision is read first: an object read afterwards is at least as new, and a watch from here
        // misses nothing.
        let revision = self.store.revision().await?;
        if name::check(name).is_err() {
            return Ok(ListPage { records: Vec::new(), revision, next: None, remaining: None });
        }
        let record = self.store.get(&key(kind, name)).await?;
        let records: Vec<StoreRecord> =
            record.into_iter().filter(|record| selects(selector, &record.value)).collect();
        let revision = records.iter().map(|record| record.revision).fold(revision, Revision::max);
        Ok(ListPage { records, revision, next: None, remaining: None })
    }
}

struct Start {
    at: Option<Revision>,
    after: Option<String>,
}

impl Start {
    fn is_newest(&self) -> bool {
        self.at.is_none() && self.after.is_none()
    }
}

fn selects(selector: &Selector, stored: &[u8]) -> bool {
    selector.is_empty() || SelectableFields::from_stored(stored).is_ok_and(|fields| selector.matches(&fields))
}

fn next_token(kind: Kind, revision: Revision, records: &[StoreRecord], more: bool) -> Option<String> {
    let last = records.last().filter(|_| more)?;
    Some(ContinueToken { at: Some(revision), after: name_of(&last.key).to_owned() }.print(kind))
}

/// Returns 410 with a token that continues in the newest state, as Kubernetes does, for clients that accept
/// that.
fn continue_expired(kind: Kind, token: ContinueToken) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.metadata.continue_token = ContinueToken { at: None, after: token.after }.print(kind);
    status
}
