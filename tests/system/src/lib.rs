//! The whole over loopback: a cloud, edges, and the command line as a user has them. The tests are in `tests/it`.
