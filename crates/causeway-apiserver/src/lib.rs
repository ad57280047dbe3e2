//! HTTP in front of the store, as Kubernetes clients expect it.
//!
//! `registry` admits and stores objects; `request` decides what is asked; the rest moves bytes.
