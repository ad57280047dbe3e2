//! Limits the number of new connections that wait for their first poll on a thread.
//!
//! A connection is a task, and one thread runs a link and all connections on it. A client that opens ten
//! thousand connections at once would queue ten thousand tasks before those of the link: for seconds the link
//! would neither read nor answer, and its peer would consider it dead. Therefore the next connection is
//! accepted when an earlier one has been polled once. Time that a connection spends afterwards, for example
//! on a slow backend, does not count.

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
    pub async fn permit(&self) -> StartPermit {
        // The semaphore is never closed, so a permit is always granted.
        StartPermit(self.0.clone().acquire_owned().await.ok())
    }
}

/// A permit to start one connection.
#[derive(Debug)]
pub struct StartPermit(Option<OwnedSemaphorePermit>);

impl StartPermit {
    /// Runs `future`, which holds the permit until it has been polled once.
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

    /// Opens ten thousand connections at once, none of which ends. Returns the largest number that were
    /// polled for the first time between two polls of a task that existed before.
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
                    Some(limit) => drop(spawn_local(limit.permit().await.start(connection))),
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
