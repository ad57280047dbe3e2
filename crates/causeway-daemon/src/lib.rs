//! What every long-running process needs: logs, metrics, readiness, drain, signals, its data dir.
//!
//! Knows nothing of sites or objects.
