//! Tests of selectors.
