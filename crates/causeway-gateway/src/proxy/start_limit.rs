//! Limits the number of new connections that have not been polled yet on a thread.
//!
//! A connection is a task, and one thread drives a link and all its streams. A client that opens ten thousand
//! connections at once would put ten thousand tasks before the link's own: for seconds the link would neither
//! read nor answer, and be considered dead. So the next connection is accepted from the kernel after an
//! earlier one was polled for the first time. Later waits of a connection, for a slow backend for example, do
//! not count.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At 0.2 ms each in a debug build, other tasks wait for 13 ms.
const STARTING_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct StartLimit(Arc<Semaphore>);

impl Default for StartLimit {
    fn default() -> StartLimit {
        StartLimit(Arc::new(Semaphore::new(STARTING_MAX)))
    }
}

impl StartLimit {
    /// Waits until a connection may be started. Cancel safe.
    pub async fn place(&self) -> StartPermit {
        // The semaphore is never closed, so a permit is always returned in the end.
        StartPermit(self.0.clone().acquire_owned().await.ok())
    }
}

/// The permit to start one connection.
#[derive(Debug)]
pub struct StartPermit(Option<OwnedSemaphorePermit>);

impl StartPermit {
    /// `future` keeps the permit until it has been polled once.
    pub fn start<F>(self, future: F) -> Starting<F> {
        Starting { future, permit: self }
    }
}

#[derive(Debug)]
pub struct Starting<F> {
    future: F,
    permit: StartPermit,
}

impl<F: Future + Unpin> Future for Starting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.future).poll(context);
        self.permit.0 = None;
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    /// Ten thousand connections arrive at once, none of them ever ends. Returns the number that was polled
    /// for the first time between two polls of a task that was there before.
    async fn most_between_turns(limit: Option<StartLimit>) -> usize {
        const CONNECTIONS: usize = 10_000;
        let (started, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (seen, worst) = (started.clone(), most.clone());
        let link = spawn_local(async move {
            while seen.get() < CONNECTIONS {
                let before = seen.get();
                yield_now().await;
                worst.set(worst.get().max(seen.get() - before));
            }
        });
        let accepting = spawn_local(async move {
            for _ in 0..CONNECTIONS {
                let started = started.clone();
                let connection = Box::pin(async move {
                    started.set(started.get() + 1);
                    std::future::pending::<()>().await;
                });
                match &limit {
                    Some(limit) => drop(spawn_local(limit.place().await.start(connection))),
                    None => drop(spawn_local(connection)),
                }
            }
        });
        accepting.await.unwrap();
        link.await.unwrap();
        most.get()
    }

    #[tokio::test]
    async fn a_link_has_its_turn_between_new_connections_however_many_come() {
        LocalSet::new()
            .run_until(async {
                let unlimited = most_between_turns(None).await;
                assert!(unlimited > 10 * STARTING_MAX, "{unlimited}: the test shows nothing");
                let limited = most_between_turns(Some(StartLimit::default())).await;
                assert!(limited <= 2 * STARTING_MAX, "{limited}");
            })
            .await;
    }
}
