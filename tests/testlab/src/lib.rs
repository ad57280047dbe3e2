//! Real things for tests: directories, processes that die with the test, etcd clusters.

pub mod etcd;
