//! The relay's own small language, one command per line.
//!
//! `up|down|both delay 100ms`, `jitter 20ms`, `loss 5%`, `duplicate 1%`, `reorder 2%`, `throttle 100000` (bytes per
//! second) or `throttle off`, `blackhole on|off`, `clear`; and without a direction `cut`, `restore`, `rebind`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Direction, Faults, Relay};

pub fn obey(relay: &Relay, line: &str) -> Result<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["cut"] => relay.cut(),
        ["restore"] => relay.restore(),
        ["rebind"] => relay.rebind(),
        [direction, change @ ..] => {
            for direction in directions(direction)? {
                let faults = changed(relay.faults(*direction), change)?;
                relay.set(*direction, faults);
            }
        }
        [] => {}
    }
    Ok(())
}

fn directions(word: &str) -> Result<&'static [Direction]> {
    Ok(match word {
        "up" => &[Direction::Up],
        "down" => &[Direction::Down],
        "both" => &[Direction::Up, Direction::Down],
        other => bail!("{other} is neither a direction (up, down, both) nor cut, restore or rebind"),
    })
}

fn changed(mut faults: Faults, change: &[&str]) -> Result<Faults> {
    match change {
        ["delay", time] => faults.delay = milliseconds(time)?,
        ["jitter", time] => faults.jitter = milliseconds(time)?,
        ["loss", share] => faults.loss = percent(share)?,
        ["duplicate", share] => faults.duplicate = percent(share)?,
        ["reorder", share] => faults.reorder = percent(share)?,
        ["throttle", "off"] => faults.bytes_per_second = None,
        ["throttle", speed] => faults.bytes_per_second = Some(speed.parse().context("bytes per second")?),
        ["blackhole", "on"] => faults.black_hole = true,
        ["blackhole", "off"] => faults.black_hole = false,
        ["clear"] => faults = Faults::default(),
        other => bail!("{} is no fault", other.join(" ")),
    }
    Ok(faults)
}

fn milliseconds(text: &str) -> Result<Duration> {
    let number = text.strip_suffix("ms").context("times are given in ms")?;
    Ok(Duration::from_millis(number.parse()?))
}

fn percent(text: &str) -> Result<f64> {
    let number: f64 = text.strip_suffix('%').context("shares are given in %")?.parse()?;
    ensure!((0.0..=100.0).contains(&number), "{text} is no share");
    Ok(number / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_change_what_they_name_and_nothing_else() {
        let before = Faults { loss: 0.05, ..Faults::default() };
        let check = |words: &str, expected: Faults| {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(changed(before.clone(), &words).unwrap(), expected, "{words:?}");
        };
        check("delay 100ms", Faults { delay: Duration::from_millis(100), ..before.clone() });
        check("loss 2.5%", Faults { loss: 0.025, ..before.clone() });
        check("throttle 1000", Faults { bytes_per_second: Some(1000), ..before.clone() });
        check("blackhole on", Faults { black_hole: true, ..before.clone() });
        check("clear", Faults::default());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for words in ["delay 100", "loss 5", "loss 101%", "throttle fast", "explode"] {
            let words: Vec<&str> = words.split(' ').collect();
            assert!(changed(Faults::default(), &words).is_err(), "{words:?}");
        }
        assert!(directions("sideways").is_err());
    }
}
