//! The battery on a real cluster of three, and what only several members and replicas can show.

use testlab::etcd::Cluster;

use crate::battery::{self, for_each_promise};
use crate::lab::Lab;

/// One cluster for all promises: starting it costs more than most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_holds_on_three_members() {
    let cluster = Cluster::start(3).unwrap();
    macro_rules! run {
        ($($promise:ident,)*) => {
            $(
                let started = std::time::Instant::now();
                println!("{} ...", stringify!($promise));
                battery::$promise(&Lab::etcd(&cluster, stringify!($promise))).await;
                println!("{} ok, {:?}", stringify!($promise), started.elapsed());
            )*
        };
    }
    for_each_promise!(run);
}
