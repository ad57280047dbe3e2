//! The place where the tunnel meets the packets of its site: routes of the kernel, or flows of an Open vSwitch bridge.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use causeway_daemon::error_chain;

use super::TunnelOptions;
use super::device::{DeviceKind, TunDevice};
use super::interface::{self, TunInterface};
use super::ovs::OvsBridge;
use super::packet_device::PacketDevice;
use super::plan::ForwardPlan;
use super::tap_device::TapDevice;

/// Time between checks of the flows of a bridge: a switch that was restarted has lost them.
const FLOW_CHECK_PERIOD: Duration = Duration::from_secs(5);

/// The way of packets between the hosts of the site and the tunnel.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Datapath {
    /// Routes of the host lead to a TUN device.
    #[default]
    Tun,
    /// Flows of this Open vSwitch bridge lead to a TAP device.
    Ovs { bridge: String },
}

pub enum Attachment<'a> {
    Tun(TunInterface),
    Ovs { bridge: &'a mut OvsBridge, device: String, troubles: Vec<String> },
}

impl Attachment<'_> {
    /// Opens a device. With a bridge, it becomes a port of the bridge by `follow`.
    pub async fn open<'a>(
        options: &TunnelOptions,
        mtu: u16,
        bridge: Option<&'a mut OvsBridge>,
    ) -> io::Result<(PacketDevice, Attachment<'a>)> {
        match bridge {
            None => {
                let device = TunDevice::open(&options.device_name, DeviceKind::Tun)?;
                let interface = TunInterface::open(device.name(), u32::from(mtu)).await?;
                Ok((PacketDevice::Tun(device), Attachment::Tun(interface)))
            }
            Some(bridge) => {
                let tap = TapDevice::open(&options.device_name, bridge.hardware())?;
                let device = tap.device().name().to_owned();
                interface::prepare_port(&device, bridge.name(), bridge.hardware()).await?;
                Ok((PacketDevice::Tap(tap), Attachment::Ovs { bridge, device, troubles: Vec::new() }))
            }
        }
    }

    /// Brings routes or flows in step with the plan, and returns problems as sentences. Idempotent.
    pub async fn follow(&mut self, plan: &ForwardPlan, of_host: &[IpAddr]) -> Vec<String> {
        match self {
            Attachment::Tun(interface) => interface.follow(&plan.routes(), &plan.sources(of_host)).await,
            Attachment::Ovs { bridge, device, troubles } => {
                let followed = bridge.follow(device, &plan.steered()).await;
                let found: Vec<String> =
                    followed.err().map(|error| trouble(bridge, &error)).into_iter().collect();
                if found != *troubles {
                    found.iter().for_each(|trouble| tracing::warn!("{trouble}; trying again"));
                    troubles.clone_from(&found);
                }
                found
            }
        }
    }

    /// Waits until `follow` is to be called again, although the plan is the same.
    pub async fn check_due(&self) {
        match self {
            Attachment::Tun(_) => std::future::pending().await,
            Attachment::Ovs { .. } => tokio::time::sleep(FLOW_CHECK_PERIOD).await,
        }
    }

    /// Removes flows and port. The kernel removes routes with the device.
    pub async fn close(self) {
        if let Attachment::Ovs { bridge, .. } = self
            && let Err(error) = bridge.clear().await
        {
            let name = bridge.name();
            tracing::warn!(
                bridge = name,
                "cannot remove the flows and the port of this gateway: {}; the next start removes them, or by hand: {}",
                error_chain(&error),
                bridge.removal(),
            );
        }
    }
}

/// Returns the sentence for a bridge that cannot be used.
pub fn trouble(bridge: &OvsBridge, error: &super::ovs::command::OvsError) -> String {
    format!("the layer 3 tunnel is not at the bridge {}: {}", bridge.name(), error_chain(error))
}
