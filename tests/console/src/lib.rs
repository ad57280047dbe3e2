//! The web console in a real browser. The tests are in `tests/it`, the steps of the browser in `browser/`.
