//! The frames of the TCP transport and the messages of the control stream, written by hand after `docs/channel.md`.
//!
//! A frame is a head of 8 bytes (kind, flags, length, stream; big-endian) and a payload. Nothing here uses the code of the
//! channel, so that a mistake there is not repeated here.

pub const OPEN: u8 = 1;
pub const DATA: u8 = 2;
pub const RESET: u8 = 3;
pub const STOP: u8 = 4;
pub const DATAGRAM: u8 = 6;
pub const PING: u8 = 7;

/// The longest header of a stream.
pub const HEADER_BYTES_MAX: usize = 4096;

pub fn frame(out: &mut Vec<u8>, kind: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Opens a stream with this header and no credit for answers.
pub fn open(out: &mut Vec<u8>, stream: u32, header: &[u8]) {
    frame(out, OPEN, stream, &[&[0, 0, 0, 0], header].concat());
}

/// Opens a stream and gives both directions up.
pub fn open_and_give_up(out: &mut Vec<u8>, stream: u32, header: &[u8]) {
    open(out, stream, header);
    frame(out, RESET, stream, &1u32.to_be_bytes());
    frame(out, STOP, stream, &1u32.to_be_bytes());
}

/// A header of purpose 1, the control stream, as protobuf: field 1 is the purpose.
pub const CONTROL_HEADER: &[u8] = &[0x08, 1];

/// Purpose 3 (a service), to a site and a gateway that do not exist: fields 2, 3 and 4 are strings.
pub const SERVICE_HEADER: &[u8] = b"\x08\x03\x12\x06nobody\x1a\x06nobody\x22\x03web";

/// Hello behind a length of four bytes: field 1 of the message, in it version (field 1) and epoch (field 2).
pub fn hello(epoch: u64) -> Vec<u8> {
    let mut hello = vec![0x08, 1, 0x10];
    let mut left = epoch;
    while left >= 0x80 {
        hello.push(left as u8 | 0x80);
        left >>= 7;
    }
    hello.push(left as u8);
    let mut message = vec![0x0a, u8::try_from(hello.len()).unwrap()];
    message.extend_from_slice(&hello);
    [&u32::try_from(message.len()).unwrap().to_be_bytes()[..], &message].concat()
}
