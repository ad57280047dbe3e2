//! Parts that the fuzz targets share: documents from bytes, mutation that keeps JSON well formed, futures that never wait.
//!
//! Targets state what must hold and panic when it does not; nothing here judges.

pub mod json;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future that has all its input in memory and therefore never waits.
pub fn now<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a future over bytes in memory waited"),
    }
}

/// Texts that reach people or logs must stay readable, however large the input was.
#[track_caller]
pub fn assert_short(text: &str, bytes_max: usize) {
    assert!(text.len() <= bytes_max, "a text of {} bytes, at most {bytes_max}: {text:.300}", text.len());
}
