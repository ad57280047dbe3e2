//! The port of the tunnel at an Open vSwitch bridge, and the flows that lead packets to it.
//!
//! `flows` decides which flows there are, `command` runs the programs of Open vSwitch, `tap_device` reads and writes frames.
//! The bridge is the operator's: only ports and flows that are marked as this gateway's are added and removed. Running twice
//! changes nothing.

pub mod flows;

pub mod command;

use std::path::PathBuf;

use ipnet::IpNet;

use crate::neighbour_proxy::message::HardwareAddress;
use command::{OvsError, run};
use flows::BridgePort;

const VSCTL: &str = "ovs-vsctl";
const OFCTL: &str = "ovs-ofctl";
/// Both programs give up themselves, before they are ended.
const TIMEOUT: &str = "--timeout=4";
/// The key of `external_ids` that marks the port of a gateway.
const PORT_MARK: &str = "causeway-gateway";
/// The socket of Open vSwitch's database, and its folder where the environment names no other one.
const RUN_FOLDER: &str = "/var/run/openvswitch";
const DATABASE_SOCKET: &str = "db.sock";
/// The exit code of `ovs-vsctl br-exists` for a bridge that does not exist.
const NO_BRIDGE: i32 = 2;

/// The side of one gateway at a bridge.
pub struct OvsBridge {
    bridge: String,
    cookie: u64,
    hardware: HardwareAddress,
    /// The flows that were set last, and as Open vSwitch prints them: its form differs between versions.
    installed: Option<(Vec<String>, Vec<String>)>,
}

impl OvsBridge {
    pub fn new(bridge: &str, key: &[u8; 32]) -> OvsBridge {
        OvsBridge {
            bridge: bridge.to_owned(),
            cookie: flows::cookie(key),
            hardware: flows::hardware_address(key),
            installed: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.bridge
    }

    pub fn hardware(&self) -> HardwareAddress {
        self.hardware
    }

    /// Returns the command by which an operator removes the flows of this gateway.
    pub fn removal(&self) -> String {
        format!("ovs-ofctl del-flows {} {}", self.bridge, flows::filter(self.cookie))
    }

    /// Removes flows and ports of this gateway, also those of a process that was killed, at whichever bridge they are.
    pub async fn clear(&mut self) -> Result<(), OvsError> {
        self.installed = None;
        let mark = format!("external_ids:{PORT_MARK}={:#x}", self.cookie);
        let found = vsctl(&["--bare", "--columns=name", "find", "Port", &mark]).await?;
        for port in found.split_whitespace() {
            let bridge = vsctl(&["port-to-br", port]).await?;
            // Flows first: a port that is still there leads the next attempt to them.
            self.remove_flows(bridge.trim()).await?;
            vsctl(&["--if-exists", "del-port", port]).await?;
            tracing::info!(port, bridge = bridge.trim(), "removed the port and its flows from the bridge");
        }
        match self.exists().await? {
            true => self.remove_flows(&self.bridge).await,
            false => Ok(()),
        }
    }

    /// Makes a device a port of the bridge, and brings the flows in step with the networks.
    pub async fn follow(&mut self, device: &str, networks: &[IpNet]) -> Result<(), OvsError> {
        let number = match self.port_number(device).await? {
            Some(number) => number,
            None => self.add_port(device).await?,
        };
        let port = BridgePort { cookie: self.cookie, number, hardware: self.hardware };
        let wanted = flows::wanted(&port, networks);
        let found = self.flows().await?;
        if self.installed.as_ref().is_some_and(|(set, printed)| *set == wanted && *printed == found) {
            return Ok(());
        }
        let text = flows::replacement(self.cookie, &wanted);
        let bundle = [TIMEOUT, "--bundle", "add-flows", &self.bridge, "-"];
        let set = run(OFCTL, &bundle, &text).await?;
        if set.message.contains("OFPFMFC_OVERLAP") {
            return Err(OvsError::Overlap(self.bridge.clone()));
        }
        set.success(OFCTL)?;
        let printed = self.flows().await?;
        if printed.len() != wanted.len() {
            let bridge = self.bridge.clone();
            return Err(OvsError::Count { bridge, wanted: wanted.len(), found: printed.len() });
        }
        tracing::info!(bridge = %self.bridge, flows = wanted.len(), "set the flows of the bridge");
        self.installed = Some((wanted, printed));
        Ok(())
    }

    /// Removes ports and flows that this gateway has left at any bridge, for a gateway that uses none any more. Does nothing on a
    /// host where no Open vSwitch runs.
    pub async fn remove_from_all(key: &[u8; 32]) -> Result<(), OvsError> {
        let folder = std::env::var_os("OVS_RUNDIR").map_or_else(|| RUN_FOLDER.into(), PathBuf::from);
        if !folder.join(DATABASE_SOCKET).exists() {
            return Ok(());
        }
        let bridges = vsctl(&["list-br"]).await?;
        for name in bridges.split_whitespace() {
            let mut bridge = OvsBridge::new(name, key);
            let found = bridge.flows().await?;
            if !found.is_empty() {
                tracing::info!(
                    bridge = name,
                    flows = found.len(),
                    "removing flows that were left at the bridge"
                );
            }
            // Ports as well, wherever they are.
            bridge.clear().await?;
        }
        Ok(())
    }

    async fn exists(&self) -> Result<bool, OvsError> {
        let asked = run(VSCTL, &[TIMEOUT, "br-exists", &self.bridge], "").await?;
        match asked.status.code() {
            Some(NO_BRIDGE) => Ok(false),
            _ => asked.success(VSCTL).map(|_| true),
        }
    }

    async fn add_port(&self, device: &str) -> Result<u32, OvsError> {
        if !self.exists().await? {
            return Err(OvsError::NoBridge(self.bridge.clone()));
        }
        let mark = format!("external_ids:{PORT_MARK}={:#x}", self.cookie);
        vsctl(&["--may-exist", "add-port", &self.bridge, device, "--", "set", "Port", device, &mark]).await?;
        match self.port_number(device).await? {
            Some(number) => Ok(number),
            None => {
                let message = vsctl(&["get", "Interface", device, "error"]).await?;
                Err(OvsError::Port { port: device.to_owned(), message: message.trim().to_owned() })
            }
        }
    }

    /// Returns the OpenFlow number of a port. None: there is no such port, or the switch could not open it.
    async fn port_number(&self, device: &str) -> Result<Option<u32>, OvsError> {
        let said = vsctl(&["--if-exists", "get", "Interface", device, "ofport"]).await?;
        // A port that could not be opened has the number -1, one that is new an empty set.
        Ok(said.trim().parse().ok())
    }

    /// Returns the flows of this gateway, as Open vSwitch prints them.
    async fn flows(&self) -> Result<Vec<String>, OvsError> {
        let filter = flows::filter(self.cookie);
        let arguments = [TIMEOUT, "--no-stats", "--no-names", "dump-flows", &self.bridge, &filter];
        let text = run(OFCTL, &arguments, "").await?.success(OFCTL)?;
        Ok(flows::dumped(&text))
    }

    async fn remove_flows(&self, bridge: &str) -> Result<(), OvsError> {
        let arguments = [TIMEOUT, "--bundle", "del-flows", bridge, &flows::filter(self.cookie)];
        run(OFCTL, &arguments, "").await?.success(OFCTL).map(drop)
    }
}

async fn vsctl(arguments: &[&str]) -> Result<String, OvsError> {
    let arguments = [&[TIMEOUT], arguments].concat();
    run(VSCTL, &arguments, "").await?.success(VSCTL)
}
