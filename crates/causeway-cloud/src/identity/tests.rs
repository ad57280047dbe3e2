//! Rows for the whole of identity.
