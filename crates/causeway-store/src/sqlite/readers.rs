//! A pool of read-only connections, each used by one blocking thread at a time.
//!
//! Readers never wait for the writer, and the async runtime never waits for a disk. When all connections are
//! busy, the caller waits.

use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{blocking, schema, translate};
use crate::StoreError;
use crate::sync::MutexExt;

/// Two suffice on small machines; four keep a long list from delaying short reads.
const CONNECTIONS: u32 = 4;

pub(crate) struct Readers {
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub fn open(path: &Path) -> Result<Readers, StoreError> {
        let idle = (0..CONNECTIONS).map(|_| schema::open_reader(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Readers { idle: Mutex::new(idle), permits: Arc::new(Semaphore::new(CONNECTIONS as usize)) })
    }

    /// Runs `work` inside one read transaction: everything it reads is of one revision.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Readers>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let readers = Arc::clone(self);
        blocking(move || {
            let _permit = permit;
            let connection = readers.idle().pop().ok_or(StoreError::Closed)?;
            let outcome = in_transaction(&connection, work);
            readers.idle().push(connection);
            outcome
        })
        .await?
    }

    /// Waits for reads in progress, then closes the connections.
    pub async fn close(&self) {
        if let Ok(all) = self.permits.acquire_many(CONNECTIONS).await {
            self.permits.close();
            self.idle().clear();
            drop(all);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock_ignoring_poison()
    }
}

fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let transaction = connection.unchecked_transaction().map_err(translate)?;
    work(&transaction)
}
