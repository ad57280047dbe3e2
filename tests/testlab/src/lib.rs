//! Real things for tests: directories, processes that die with the test, etcd clusters, running clouds.

pub mod causeway;
pub mod etcd;
pub mod https;
