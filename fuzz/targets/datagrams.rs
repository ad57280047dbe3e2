//! Datagrams on a stream between gateways: however the bytes are cut, the same datagrams come out, and they are the bytes.

#![no_main]

use bytes::Bytes;
use causeway_gateway::proxy::udp::frames::Frames;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((piece, data)) = data.split_first() else { return };
    let whole = cut(data, data.len().max(1));
    let pieces = cut(data, usize::from(*piece) + 1);
    assert_eq!(whole, pieces);
    let (datagrams, is_whole) = whole;
    let written: Vec<u8> = datagrams.concat();
    assert!(data.starts_with(&written));
    assert_eq!(is_whole, written.len() == data.len());
});

fn cut(data: &[u8], piece: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut frames, mut found) = (Frames::default(), Vec::new());
    for chunk in data.chunks(piece) {
        frames.push(Bytes::copy_from_slice(chunk));
        while let Some(datagram) = frames.take() {
            found.push(datagram.into_frame().to_vec());
        }
    }
    (found, frames.is_whole())
}
