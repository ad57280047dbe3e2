//! What a new cloud begins with: the site `cloud` and its gateway `cloud`.

use causeway_api::{EGateway, ESite, Object, ObjectMeta, Status};
use causeway_apiserver::Registry;

use crate::reconcile::MANAGER;

/// The name of the central site and of its gateway.
pub const CLOUD: &str = "cloud";

/// Creates what is missing. Objects that are there stay as they are, whoever changed them. The new ones are a beginning: to
/// apply other values over their defaults is no conflict.
pub async fn ensure(registry: &Registry) -> Result<(), Status> {
    let site = ESite { metadata: ObjectMeta::named(CLOUD), ..ESite::default() };
    let gateway =
        EGateway { metadata: ObjectMeta::named(CLOUD), e_site_name: CLOUD.to_owned(), ..EGateway::default() };
    let objects: [Object; 2] = [site.into(), gateway.into()];
    for object in objects {
        match registry.create_with_defaults(MANAGER, object).await {
            Ok(_) => {}
            // There already, or another replica was faster.
            Err(status) if status.code == 409 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}
