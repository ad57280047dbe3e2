//! A change of a netmap, as it is sent over the link and stored on disk.
//!
//! Bytes are tried as they are, and as deflated content. Invariants: a parsed update is written as bytes that
//! parse as the same; its result has the announced digest; a view of it can be made, whatever the entries
//! contain.
#![no_main]

use std::io::Read;

use causeway_netmap::{Netmap, NetmapUpdateData, NetmapView};
use flate2::Compression;
use flate2::bufread::DeflateEncoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut deflated = vec![2];
    DeflateEncoder::new(data, Compression::fast()).read_to_end(&mut deflated).expect("memory does not fail");
    let mut plain = vec![1];
    plain.extend_from_slice(data);
    for bytes in [data, &plain, &deflated] {
        let Ok(update) = NetmapUpdateData::decode(bytes) else { continue };
        assert_eq!(NetmapUpdateData::decode(&update.encode()).as_ref(), Ok(&update));
        // The digest is hard to guess, so it is corrected; the base is empty, so a change is taken as the
        // whole.
        let entries = update.set.clone();
        let Ok(made) = Netmap::build(update.target.generation, entries, None) else { continue };
        let whole = NetmapUpdateData { base: None, target: made.stamp(), unset: Vec::new(), ..update };
        assert_eq!(Netmap::apply(None, &whole).as_ref(), Ok(&made));
        let view = NetmapView::decode(&made);
        assert!(view.damaged.len() + view.unknown <= made.len());
    }
});
