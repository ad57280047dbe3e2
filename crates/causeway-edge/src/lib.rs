//! The edge role: enrols once, keeps its certificate fresh.
//!
//! Everything it must remember is in its data dir.
