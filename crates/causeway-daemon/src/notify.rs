//! Tells systemd (`Type=notify`) how far we are. Without NOTIFY_SOCKET every call does nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The process serves.
pub fn ready() {
    send("READY=1");
}

/// The process drains.
pub fn stopping() {
    send("STOPPING=1");
}

fn send(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send_to(&socket.to_string_lossy(), state) {
        tracing::debug!(%error, state, "systemd was not notified");
    }
}

fn send_to(socket: &str, state: &str) -> std::io::Result<()> {
    // A leading @ means the abstract namespace, as sd_notify(3) says.
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_arrives_at_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify.sock");
        let listener = UnixDatagram::bind(&path).unwrap();
        send_to(&path.to_string_lossy(), "READY=1").unwrap();
        let mut buffer = [0; 16];
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
    }
}
