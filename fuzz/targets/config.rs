//! The configuration file, and the values in it: endpoints, store specifications, durations.
//!
//! The parser is part of the binary, which is no library, so its files are compiled into this target.
//! Invariants: the effective configuration is printed as a file that gives the same configuration; a printed
//! value parses as the same value.
#![no_main]

use std::fmt::{Debug, Display};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/causeway/src"]
#[allow(dead_code, unused_imports)]
mod program {
    pub mod config;
    pub mod duration;
    pub mod problem;
}
use program::{config, duration, problem};

use config::{Config, Endpoint, Layer, Store};

/// In memory if possible: every input is written to it.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("causeway-fuzz-config-{}.toml", std::process::id()))
});

fuzz_target!(|text: &str| {
    match load(text) {
        Ok(config) => check(&config),
        Err(error) => {
            if let Some(problem) = error.downcast_ref::<problem::Problem>() {
                assert!(!problem.render(false).is_empty());
            }
        }
    }
    round_trip::<Endpoint>(text);
    round_trip::<duration::Span>(text);
    if let Ok(store) = text.parse::<Store>() {
        // Passwords are not printed, so only the second printing must be equal.
        let shown = store.to_string();
        let again: Store = shown.parse().expect("a store specification reads what it prints");
        assert_eq!(again.to_string(), shown);
    }
});

fn load(text: &str) -> anyhow::Result<Config> {
    std::fs::write(&*FILE, text).expect("the folder for temporary files can be written");
    Config::load(Layer::default(), Some(&FILE))
}

fn check(config: &Config) {
    let printed = config.to_toml();
    std::fs::write(&*FILE, &printed).expect("the folder for temporary files can be written");
    let layer = match config::read(&FILE) {
        Ok(layer) => layer,
        Err(error) => panic!("a printed configuration cannot be read: {error}\n{printed}"),
    };
    let again = Config::resolve(layer, Layer::default(), Layer::default());
    assert_eq!(again.to_json(), config.to_json(), "{printed}");
}

fn round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value));
    }
}
