//! Carries connections by name and by policy: from local clients to other sites, and from other sites to local backends.
