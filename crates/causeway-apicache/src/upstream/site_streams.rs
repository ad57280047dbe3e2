//! Counts the streams of each site, so that one site cannot take the memory of another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Subscriptions and requests that one site may have open at the same time. A site holds a few dozen resources, and one
/// subscription per ConfigMap and Secret of its pods.
const STREAMS_MAX: usize = 8_192;

/// The open streams by site. Sites without one have no entry.
#[derive(Clone, Default)]
pub struct SiteStreams(Arc<Mutex<HashMap<String, usize>>>);

/// One open stream; dropping it frees its place.
pub struct SiteStream {
    streams: SiteStreams,
    site: String,
}

impl SiteStreams {
    /// Counts a stream; `None` when the site has too many.
    pub fn begin(&self, site: &str) -> Option<SiteStream> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(site.to_owned()).or_default();
        if *count >= STREAMS_MAX {
            return None;
        }
        *count += 1;
        Some(SiteStream { streams: self.clone(), site: site.to_owned() })
    }
}

impl Drop for SiteStream {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = open.get_mut(&self.site).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            open.remove(&self.site);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_cannot_take_the_streams_of_another() {
        let streams = SiteStreams::default();
        let mut held: Vec<SiteStream> = (0..STREAMS_MAX).map(|_| streams.begin("oslo").unwrap()).collect();
        assert!(streams.begin("oslo").is_none());
        assert!(streams.begin("berlin").is_some());
        held.pop();
        assert!(streams.begin("oslo").is_some());
        held.clear();
        assert!(streams.0.lock().unwrap().is_empty());
    }
}
