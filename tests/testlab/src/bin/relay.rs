//! The relay as a program: `relay LISTEN TARGET [SEED]`, then one command per line on standard input.
//!
//! Says where it listens, then `ok` or `error: ...` for every line. Ends with its input.

use std::io::BufRead;

use anyhow::{Context, Result};
use testlab::random::SeededRandom;
use testlab::relay::Relay;

fn main() -> Result<()> {
    const USAGE: &str = "usage: relay LISTEN TARGET [SEED]";
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().context(USAGE)?.parse()?;
    let target = arguments.next().context(USAGE)?.parse()?;
    let seed = match arguments.next() {
        Some(text) => text.parse()?,
        None => SeededRandom::seed("relay"),
    };
    let relay = Relay::start(listen, target, seed)?;
    println!("listening on {}", relay.address());
    for line in std::io::stdin().lock().lines() {
        match relay.command(&line?) {
            Ok(()) => println!("ok"),
            Err(error) => println!("error: {error:#}"),
        }
    }
    Ok(())
}
