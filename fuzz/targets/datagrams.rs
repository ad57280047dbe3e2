//! Datagrams on a stream between gateways, and beside it: however the bytes are cut, the same datagrams come out, and they are
//! the bytes; a number in front is read as it would be written, but for its length.

#![no_main]

use bytes::Bytes;
use causeway_channel::wire::datagrams::{FramedDatagram, DatagramDecoder, beside, read_beside};
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
    if let Some((number, payload)) = read_beside(Bytes::copy_from_slice(data)) {
        assert!(data.ends_with(&payload));
        let again = beside(number, &payload);
        assert!(again.len() <= data.len());
        assert_eq!(read_beside(again), Some((number, payload.clone())));
        if let Some(datagram) = FramedDatagram::bare(payload.clone()) {
            assert_eq!(datagram.payload(), payload);
            assert_eq!(datagram.into_frame()[2..], payload);
        }
    }
});

fn cut(data: &[u8], piece: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut frames, mut found) = (DatagramDecoder::default(), Vec::new());
    for chunk in data.chunks(piece) {
        frames.push(Bytes::copy_from_slice(chunk));
        while let Some(framed) = frames.take() {
            found.push(framed.into_bytes().to_vec());
        }
    }
    (found, frames.is_whole())
}
