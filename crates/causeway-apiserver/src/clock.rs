//! The time source of the registry: the system clock, or a test's clock. `causeway_channel::Clock` is that of the channel.

use jiff::Timestamp;

pub trait TimeSource: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl TimeSource for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A closure is a clock, so that a test can set the time.
impl<F> TimeSource for F
where
    F: Fn() -> Timestamp + Send + Sync + 'static,
{
    fn now(&self) -> Timestamp {
        self()
    }
}
