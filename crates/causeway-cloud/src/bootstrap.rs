//! The objects that the cloud needs: the site `cloud`, its gateway `cloud`, and the namespace `default` that Kubernetes' tools
//! look for.
//!
//! They are made when the cloud starts, and again by the reconciler when one is deleted.

use causeway_api::kinds::Namespace;
use causeway_api::{EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apiserver::{Registry, RegistryError};

use crate::reconcile::MANAGER;

pub use causeway_api::CLOUD;

/// Returns true for an object that `ensure` makes.
pub fn is_own(kind: Kind, name: &str) -> bool {
    matches!(kind, Kind::ESite | Kind::EGateway) && name == CLOUD
}

/// Creates the missing objects. Existing objects stay as they are. Applying other values over the defaults of the new ones
/// is no conflict.
pub async fn ensure(registry: &Registry) -> Result<(), RegistryError> {
    let site = ESite { metadata: ObjectMeta::named(CLOUD), ..ESite::default() };
    let gateway =
        EGateway { metadata: ObjectMeta::named(CLOUD), e_site_name: CLOUD.to_owned(), ..EGateway::default() };
    let objects: [Object; 3] = [site.into(), gateway.into(), Namespace::only().into()];
    for object in objects {
        match registry.create_with_defaults(MANAGER, object).await {
            Ok(_) => {}
            // There already, or another replica was faster.
            Err(RegistryError::AlreadyExists(_) | RegistryError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
