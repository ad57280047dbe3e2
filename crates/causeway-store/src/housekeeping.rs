//! Periodic work of every engine: reports progress to watchers, and looks for history to compact.

use std::future::Future;
use std::sync::Arc;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::hub::{PROGRESS, WatchHub};
use crate::retention::TICK;

/// Runs until it is stopped. `maintain` is called once a minute and does the engine's part.
pub(crate) async fn run<Maintain>(
    hub: Arc<WatchHub>,
    stop: CancellationToken,
    mut maintain: impl FnMut() -> Maintain,
) where
    Maintain: Future<Output = ()>,
{
    let soon = Instant::now() + PROGRESS;
    let (mut progress, mut tick) = (interval_at(soon, PROGRESS), interval_at(soon, TICK));
    // After a stall one call is enough.
    progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = progress.tick() => hub.tell_progress(),
            _ = tick.tick() => maintain().await,
        }
    }
}
