//! A WireGuard peer that is no Causeway gateway: wireguard-go of Debian, with the tools of WireGuard.

use std::net::SocketAddr;
use std::process::{Child, Command};

use causeway_netmap::{TunnelCipher, TunnelKey};
use testlab::causeway::wait_for;
use testlab::net::{Echo, Net, reach_tcp, reach_udp};

use crate::build;
use crate::presence_namespace::leftovers;
use crate::tunnel_lab::{PATIENCE, PORT, Site, TunnelHost, ping, plan, run, view, wait_ping};

/// A wireguard-go in a namespace; it ends with this value.
struct WireguardGo(Child);

impl Drop for WireguardGo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // A process that is killed leaves its control socket.
        let _ = std::fs::remove_file(format!("/var/run/wireguard/{DEVICE}.sock"));
    }
}

/// The control sockets of all namespaces are in one folder: the name is this test's.
const DEVICE: &str = "cwlab-wg";

fn wg(net: &Net, line: &str) -> String {
    let arguments: Vec<&str> = line.split(' ').collect();
    let output = run(net, "gw-b", "wg", &arguments);
    assert!(output.status.success(), "wg {line}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_plain_wireguard_peer_exchanges_packets_and_takes_part_in_nothing_else() {
    let test = "a_plain_wireguard_peer_exchanges_packets_and_takes_part_in_nothing_else";
    let (lan_a, lan_b) = (["10.1.0.0/24"], ["10.2.0.0/24"]);
    let Some(net) = build(test, &plan(&lan_a, &lan_b)) else { return };
    if ["wg", "wireguard-go"].iter().any(|program| Command::new(program).arg("--version").output().is_err()) {
        println!("skipped: {test} wireguard-go or wg is missing");
        return;
    }
    let gateway = net.host("gw-b").unwrap();
    let _peer = WireguardGo(gateway.command("wireguard-go").args(["--foreground", DEVICE]).spawn().unwrap());
    wait_for("the device", || run(&net, "gw-b", "wg", &["show", DEVICE]).status.success().then_some(()))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    let private = wg(&net, "genkey");
    std::fs::write(&key_file, &private).unwrap();
    let mut host = TunnelHost::load();
    let here = host.tunnel.public_key().unwrap();
    let encoded = base64(&here.0);
    let endpoint = SocketAddr::new(net.ipv4("gw-a").unwrap().into(), PORT);
    wg(&net, &format!("set {DEVICE} listen-port {PORT} private-key {}", key_file.display()));
    wg(&net, &format!("set {DEVICE} peer {encoded} endpoint {endpoint} allowed-ips 10.1.0.0/24"));
    let public = wg(&net, &format!("show {DEVICE} public-key"));
    for line in [format!("link set {DEVICE} mtu 1420 up"), format!("route add 10.1.0.0/24 dev {DEVICE}")] {
        let arguments: Vec<&str> = line.split(' ').collect();
        assert!(run(&net, "gw-b", "ip", &arguments).status.success(), "{line}");
    }
    let (mut a, mut b) = (Site::new("a", &lan_a), Site::new("b", &lan_b));
    (a.key, b.key) = (here, TunnelKey(decode(&public)));
    // A peer of this kind knows one cipher, whatever the netmap says.
    (b.plain, b.cipher) = (true, TunnelCipher::Aes256Gcm);
    b.endpoint = Some(SocketAddr::new(net.ipv4("gw-b").unwrap().into(), PORT));
    let near = net.host("gw-a").unwrap();
    let before = leftovers(&near);
    host.start(&near, view(&a, &b));
    wait_ping(&net, "client-a", "10.2.0.2");
    assert!(ping(&net, "client-b", "10.1.0.2", &["-s", "1300", "-M", "do"]));
    let _echo = Echo::start(&net.host("client-b").unwrap(), "0.0.0.0:7000".parse().unwrap()).unwrap();
    let (client, to) = (net.host("client-a").unwrap(), "10.2.0.2:7000".parse().unwrap());
    assert_eq!(reach_tcp(&client, to, PATIENCE).unwrap().ip().to_string(), "10.1.0.2");
    assert_eq!(reach_udp(&client, to, PATIENCE).unwrap().ip().to_string(), "10.1.0.2");
    assert_ne!(wg(&net, &format!("show {DEVICE} latest-handshakes")).split('\t').next_back(), Some("0"));
    host.stop();
    assert_eq!(leftovers(&near), before, "nothing is left");
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8; 32]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for index in 0..=chunk.len() {
            text.push(ALPHABET[(number >> (18 - 6 * index) & 63) as usize] as char);
        }
    }
    text + "="
}

fn decode(text: &str) -> [u8; 32] {
    let (mut bytes, mut number, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        number = number << 6 | ALPHABET.iter().position(|known| *known == letter).unwrap() as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((number >> bits) as u8);
            number &= (1 << bits) - 1;
        }
    }
    bytes.try_into().unwrap()
}
