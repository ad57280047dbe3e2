//! Looks up the site and reserves the address of a presence in the store.
//!
//! `address` decides whether an address is allowed; this module reads the gateways and reports a failed
//! commit.

use causeway_api::{EGateway, Kind, Object, Status};
use causeway_store::{ListRange, Op, StoreError};

use super::{Registry, address, prefix};
use crate::errors::{self, ErrorSubject};

impl Registry {
    /// Gives a presence its site, and refuses an address outside the site's range.
    pub(super) async fn settle_site(
        &self,
        about: ErrorSubject<'_>,
        old: Option<&Object>,
        new: &mut Object,
    ) -> Result<(), Status> {
        let Object::VirtualPresence(presence) = new else { return Ok(()) };
        let old = match old {
            Some(Object::VirtualPresence(old)) => Some(old),
            _ => None,
        };
        // An update without a site keeps the old one if the address still belongs there.
        if presence.e_site_name.is_empty()
            && let Some(old) = old
            && old.virtual_ip == presence.virtual_ip
        {
            presence.e_site_name.clone_from(&old.e_site_name);
        }
        if presence.virtual_ip.is_empty() || !address::is_moved(old, presence) {
            return Ok(());
        }
        let gateways = self.gateways(about, &presence.e_site_name).await?;
        presence.e_site_name = address::site_of(presence, &gateways)
            .map_err(|errors| Status::invalid(about.version, about.kind, about.name, &errors))?;
        Ok(())
    }

    /// Returns the gateways of `site`, or all of them when it is empty.
    pub(super) async fn gateways(
        &self,
        about: ErrorSubject<'_>,
        site: &str,
    ) -> Result<Vec<EGateway>, Status> {
        let listed = self.store.list(&prefix(Kind::EGateway), ListRange::default()).await;
        let listed = listed.map_err(|error| errors::from_store(&error, about))?;
        // Most gateways are at other sites; a search for the name in the bytes is a cheap first filter.
        let candidates = listed.records.iter().filter(|record| contains(&record.value, site.as_bytes()));
        let objects = candidates.filter_map(|record| Object::from_stored(Kind::EGateway, &record.value).ok());
        Ok(objects
            .filter_map(|object| match object {
                Object::EGateway(gateway) if site.is_empty() || gateway.e_site_name == site => Some(gateway),
                _ => None,
            })
            .collect())
    }

    /// Maps a failed commit: a reservation that is taken is an error of the address, the rest are errors of
    /// the store.
    pub(super) async fn refuse_commit(
        &self,
        about: ErrorSubject<'_>,
        object: &Object,
        error: &StoreError,
    ) -> Status {
        if let (StoreError::AlreadyExists { key }, Object::VirtualPresence(presence)) = (error, object)
            && key.starts_with(address::COLLECTION)
        {
            let record = self.store.get(key).await.ok().flatten();
            let holder = record.and_then(|record| address::holder(&record.value));
            let taken = address::address_in_use_error(presence, holder.as_deref());
            return Status::invalid(about.version, about.kind, about.name, &[taken]);
        }
        errors::from_store(error, about)
    }

    /// Checks for a dry run whether a commit would reserve the addresses.
    pub(super) async fn rehearse_reservations(
        &self,
        about: ErrorSubject<'_>,
        object: &Object,
        reservations: &[Op],
    ) -> Result<(), Status> {
        for op in reservations {
            if let Op::Create { key, .. } = op
                && let Ok(Some(_)) = self.store.get(key).await
            {
                let error = StoreError::AlreadyExists { key: key.clone() };
                return Err(self.refuse_commit(about, object, &error).await);
            }
        }
        Ok(())
    }
}

/// Returns true if the commit failed because a reservation is absent that should exist. That must not prevent
/// its presence from being moved or deleted.
pub(super) fn is_reservation_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { key } if key.starts_with(address::COLLECTION))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}
