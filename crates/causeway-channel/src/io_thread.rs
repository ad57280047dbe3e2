//! I/O threads. A link, its streams and the connections that use them run on one thread.
//!
//! A small request passes through several tasks of a gateway: the connection's, the link's, and back. On a
//! work-stealing runtime each step may wake another thread, which costs more than the step. On one thread no
//! other thread is woken, and data of many connections that is ready at the same moment leaves in one write.
//! Each thread has its own single-threaded runtime. Threads are started on first use and end with the
//! process. `busy_poll` keeps them awake when that pays.

mod busy_poll;

use std::cell::Cell;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};

use crate::link::LinkSide;
pub use busy_poll::note;
use causeway_api::sync::MutexExt;

/// Chooses the thread of a new link. A dialling process has one link, or two during a change, and connections
/// may move between the two, so all of them share a thread. An accepting process has many links, which are
/// assigned in turn.
pub fn choose(side: LinkSide) -> io::Result<Handle> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let count = thread::available_parallelism().map_or(1, usize::from);
    let number = match side {
        LinkSide::Dialled => 0,
        LinkSide::Accepted => NEXT.fetch_add(1, Ordering::Relaxed) % count,
    };
    runtime(number)
}

/// Registers a connection with the I/O driver of that thread.
pub fn bring(stream: TcpStream, runtime: &Handle) -> io::Result<TcpStream> {
    let stream = stream.into_std()?;
    let _context = runtime.enter();
    TcpStream::from_std(stream)
}

/// The threads that have been started.
pub fn started() -> Vec<Handle> {
    STARTED.lock_ignoring_poison().iter().map(|started| started.runtime.clone()).collect()
}

/// A thread that was started, and its network namespace: connections that its tasks open leave from there. The demo
/// runs a cloud and edges in one process, each in a namespace of its own.
struct StartedThread {
    namespace: u64,
    runtime: Handle,
}

static STARTED: Mutex<Vec<StartedThread>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of this thread if it is an I/O thread.
pub fn current() -> Option<usize> {
    CURRENT.get()
}

/// Returns the runtime of that thread among those in the caller's network namespace.
fn runtime(number: usize) -> io::Result<Handle> {
    let namespace = network_namespace();
    let mut threads = STARTED.lock_ignoring_poison();
    loop {
        let mut here = threads.iter().filter(|started| started.namespace == namespace);
        if let Some(started) = here.nth(number) {
            return Ok(started.runtime.clone());
        }
        // A new thread is in the namespace of the thread that starts it.
        let runtime = start(threads.len())?;
        threads.push(StartedThread { namespace, runtime });
    }
}

/// The inode that stands for the network namespace of this thread. 0: the kernel has none.
fn network_namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.ino())
}

fn start(number: usize) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name(format!("traffic-{number}")).spawn(move || {
        CURRENT.set(Some(number));
        runtime.block_on(std::future::pending::<()>())
    })?;
    handle.spawn(busy_poll::keep());
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread::ThreadId;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn thread_of(runtime: &Handle) -> ThreadId {
        runtime.spawn(async { thread::current().id() }).await.unwrap()
    }

    #[tokio::test]
    async fn who_dials_stays_on_one_thread_and_who_accepts_uses_all() {
        let mut seen = HashSet::new();
        for _ in 0..5 {
            seen.insert(thread_of(&choose(LinkSide::Dialled).unwrap()).await);
        }
        assert_eq!(seen.len(), 1);
        let count = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..count {
            seen.insert(thread_of(&choose(LinkSide::Accepted).unwrap()).await);
        }
        // Other tests may choose a thread in between.
        assert!((1..=count).contains(&seen.len()), "{} threads", seen.len());
        assert!(!seen.contains(&thread::current().id()));
    }

    #[tokio::test]
    async fn a_connection_is_brought_there_with_what_has_come_already() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(b"before").await.unwrap();
        stream.readable().await.unwrap();
        let runtime = choose(LinkSide::Dialled).unwrap();
        let mut stream = bring(stream, &runtime).unwrap();
        let serving = runtime.spawn(async move {
            let mut read = [0; 11];
            stream.read_exact(&mut read).await.unwrap();
            stream.write_all(&read).await.unwrap();
        });
        client.write_all(b"after").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"beforeafter");
        serving.await.unwrap();
    }
}
