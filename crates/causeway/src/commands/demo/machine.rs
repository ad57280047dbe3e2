//! A machine of the demo: a thread with a runtime of its own, and, with root, with a network of its own.
//!
//! Every thread that is started from there is in the same network, so a whole cloud or edge runs in it unchanged. The network
//! has no name: it goes with the process, however that ends.

use std::fs::File;
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// One machine. Dropped, it ends with everything that runs on it.
pub struct DemoMachine {
    handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    /// Of its thread: `/proc/PID/task/ID/ns/net` is its network.
    pub thread_id: i32,
}

impl DemoMachine {
    pub fn start(name: &str, isolated: bool) -> anyhow::Result<DemoMachine> {
        let stop = CancellationToken::new();
        let (ready, started) = mpsc::channel();
        let told = stop.clone();
        let thread =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || live(isolated, told, &ready))?;
        let (handle, thread_id) = started.recv().context("a machine of the demo ended before it began")??;
        Ok(DemoMachine { handle, stop, thread: Some(thread), thread_id })
    }

    /// Runs a future there and waits for it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.handle.spawn(work).await.map_err(|error| anyhow!("a machine of the demo broke down: {error}"))
    }

    /// Runs a future there until the machine is dropped.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.handle.spawn(work)
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Its network, for those who lay cables.
    pub fn network(&self) -> anyhow::Result<File> {
        let path = format!("/proc/self/task/{}/ns/net", self.thread_id);
        File::open(&path).with_context(|| format!("{path} cannot be opened"))
    }
}

impl Drop for DemoMachine {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It has nothing left to say.
            let _ = thread.join();
        }
    }
}

type Started = anyhow::Result<(Handle, i32)>;

fn live(isolated: bool, stop: CancellationToken, ready: &mpsc::Sender<Started>) {
    let begun = || -> anyhow::Result<tokio::runtime::Runtime> {
        if isolated {
            causeway_gateway::presence_namespace::leave_host()?;
        }
        Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
    };
    match begun() {
        Ok(runtime) => {
            let _ =
                ready.send(Ok((runtime.handle().clone(), rustix::thread::gettid().as_raw_nonzero().get())));
            runtime.block_on(stop.cancelled());
            // Tasks that still run here have no user any more.
            runtime.shutdown_background();
        }
        Err(error) => drop(ready.send(Err(error))),
    }
}
