//! Tests with real Kubernetes clients and servers. The tests are in `tests/`; the lab they stand on is in `lab/`.
