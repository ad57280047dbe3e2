//! A lossy, slow link between two network namespaces, since this kernel has no netem.
//!
//! Two TUN devices: what is read from one is delayed, sometimes lost, and written to the other. The caller moves
//! the devices into their namespaces. Devices without offloads get packets as they would be on a wire, cut to the
//! MTU by the kernel, so that loss hits single packets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use tun_rs::{DeviceBuilder, SyncDevice};

#[derive(Clone, Debug, Args)]
pub struct Relay {
    /// Names of the two devices.
    #[arg(long, num_args = 2)]
    devices: Vec<String>,
    /// Delay of each direction; the round trip takes twice that.
    #[arg(long, default_value_t = 50)]
    delay_ms: u64,
    /// Share of the packets that are lost, in each direction.
    #[arg(long, default_value_t = 5.0)]
    loss_percent: f64,
    /// Speed of each direction.
    #[arg(long, default_value_t = 100)]
    rate_mbit: u64,
    /// Time for which a packet may wait for its turn before it is dropped.
    #[arg(long, default_value_t = 100)]
    queue_ms: u64,
}

impl Relay {
    /// Runs until the process is ended.
    pub fn run(self) -> Result<()> {
        let device = |name: &String| DeviceBuilder::new().name(name).mtu(1500).build_sync();
        let left = Arc::new(device(&self.devices[0])?);
        let right = Arc::new(device(&self.devices[1])?);
        println!("ready");
        let back = thread::spawn({
            let (relay, left, right) = (self.clone(), left.clone(), right.clone());
            move || relay.forward(&right, left)
        });
        self.forward(&left, right);
        drop(back.join());
        Ok(())
    }

    fn forward(&self, from: &SyncDevice, to: Arc<SyncDevice>) {
        let (later, due) = mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            for (at, packet) in due {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                drop(to.send(&packet));
            }
        });
        let mut dice = Dice(RandomState::new().build_hasher().finish() | 1);
        let mut free_at = Instant::now();
        let mut packet = vec![0; 65536];
        loop {
            // A device that has left its old namespace, or is still down, answers with an error for a moment.
            let Ok(size) = from.recv(&mut packet) else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            let now = Instant::now();
            let starts = free_at.max(now);
            let full = starts - now > Duration::from_millis(self.queue_ms);
            if full || dice.throw() < self.loss_percent / 100.0 {
                continue;
            }
            free_at = starts + Duration::from_nanos(size as u64 * 8 * 1000 / self.rate_mbit);
            let at = free_at + Duration::from_millis(self.delay_ms);
            if later.send((at, packet[..size].to_vec())).is_err() {
                return;
            }
        }
    }
}

/// xorshift64*: enough to lose packets evenly.
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}
