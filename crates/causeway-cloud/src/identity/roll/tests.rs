//! Rows for the roll.
