//! A cloud's data dir with a fleet in it: a site, a gateway and a certificate for every edge.
//!
//! Created before the cloud starts, through the same registry and registrar that a cloud uses, so that twenty
//! thousand enrolments are not needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use causeway_api::{EGateway, ESite, Object, ObjectMeta};
use causeway_apiserver::{Registry, RegistryError, SystemClock};
use causeway_channel::tls::TlsCredentials;
use causeway_channel::{PeerId, PrivateKey};
use causeway_cloud::identity::{IdentityConfig, Registrar};
use causeway_daemon::DataDir;
use causeway_store::{Store, StoreSpec};
use futures_util::{StreamExt, TryStreamExt};
use rustls_pki_types::CertificateDer;

/// Concurrent commits; the store writes them together.
const WRITERS: usize = 128;

/// A fleet that is enrolled and has not dialled yet.
pub struct FleetIdentity {
    pub data_dir: PathBuf,
    pub authorities: Vec<CertificateDer<'static>>,
    /// One for every edge.
    pub credentials: Vec<TlsCredentials>,
}

struct Made {
    number: usize,
    credentials: TlsCredentials,
    authorities: Vec<CertificateDer<'static>>,
}

impl FleetIdentity {
    pub async fn make(folder: &Path, edges: usize) -> Result<FleetIdentity> {
        let path = folder.join("cloud");
        // Its lock is released at the end, for the cloud.
        let data_dir = DataDir::open(&path)?;
        let store = Store::open(StoreSpec::Sqlite { path: data_dir.join("store.db") }).await?;
        let config = IdentityConfig::new(&path, Vec::new(), "https://127.0.0.1:1");
        let registrar = Registrar::open(store.clone(), config).await?;
        let registry = Arc::new(Registry::new(store.clone(), Arc::new(SystemClock)));
        let making = (0..edges).map(|number| {
            let (registry, registrar) = (registry.clone(), registrar.clone());
            tokio::spawn(async move { make_one(number, &registry, &registrar).await })
        });
        let mut made: Vec<Made> = futures_util::stream::iter(making)
            .buffer_unordered(WRITERS)
            .map(|joined| joined.map_err(anyhow::Error::from).flatten())
            .try_collect()
            .await?;
        made.sort_unstable_by_key(|made| made.number);
        drop((registry, registrar));
        store.close().await?;
        let authorities =
            made.first().map(|made| made.authorities.clone()).context("the fleet has no edges")?;
        let credentials = made.into_iter().map(|made| made.credentials).collect();
        Ok(FleetIdentity { data_dir: path, authorities, credentials })
    }
}

async fn make_one(number: usize, registry: &Registry, registrar: &Registrar) -> Result<Made> {
    let name = format!("edge-{number}");
    let site = ESite { metadata: ObjectMeta::named(&name), ..ESite::default() };
    let gateway =
        EGateway { metadata: ObjectMeta::named(&name), e_site_name: name.clone(), ..EGateway::default() };
    let objects: [Object; 2] = [site.into(), gateway.into()];
    for mut object in objects {
        object.default_fields();
        let refused = |error: RegistryError| anyhow!("{name} cannot be created: {error}");
        registry.create_object("bench", object).await.map_err(refused)?;
    }
    let (peer, key) = (PeerId::new(&name, &name)?, PrivateKey::generate()?);
    let issued = registrar.issue_first(&peer, &key.request(&peer)?).await;
    let issued = issued.map_err(|refusal| anyhow!("{name} gets no certificate: {refusal}"))?;
    let credentials = TlsCredentials { chain: vec![issued.certificate.into()], key: key.to_der() };
    let authorities = issued.authorities.into_iter().map(CertificateDer::from).collect();
    Ok(Made { number, credentials, authorities })
}
