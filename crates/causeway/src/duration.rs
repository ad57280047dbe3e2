//! Parses durations: `90s`, `15m`, `24h`, `30d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration from a flag, a file or the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanDuration(pub Duration);

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl HumanDuration {
    pub const fn seconds(seconds: u64) -> HumanDuration {
        HumanDuration(Duration::from_secs(seconds))
    }

    pub const fn days(days: u64) -> HumanDuration {
        HumanDuration::seconds(days * 86_400)
    }

    pub fn as_secs(self) -> u64 {
        self.0.as_secs()
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<HumanDuration, String> {
        let wrong =
            || format!("`{text}` is no duration: write a number and s, m, h or d, as in `24h` or `1h30m`");
        let (mut total, mut number) = (0u64, String::new());
        for character in text.trim().chars() {
            if character.is_ascii_digit() {
                number.push(character);
                continue;
            }
            let (_, seconds) = UNITS.iter().find(|(unit, _)| *unit == character).ok_or_else(wrong)?;
            let count: u64 = number.parse().map_err(|_| wrong())?;
            total = count.checked_mul(*seconds).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
            number.clear();
        }
        // A bare zero needs no unit; any other number without one is ambiguous.
        if text.trim() == "0" {
            return Ok(HumanDuration::seconds(0));
        }
        if text.trim().is_empty() || !number.is_empty() {
            return Err(wrong());
        }
        Ok(HumanDuration::seconds(total))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.as_secs();
        let (unit, size) = UNITS
            .iter()
            .find(|(_, size)| seconds >= *size && seconds.is_multiple_of(*size))
            .unwrap_or(&UNITS[3]);
        write!(out, "{}{unit}", seconds / size)
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = String;

    fn try_from(text: String) -> Result<HumanDuration, String> {
        text.parse()
    }
}

impl From<HumanDuration> for String {
    fn from(span: HumanDuration) -> String {
        span.to_string()
    }
}

/// An age in the short form of tables: `42s`, `17m`, `5h`, `12d`.
pub fn age(seconds: i64) -> String {
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("24h", 86_400),
            ("30d", 2_592_000),
            ("1h30m", 5_400),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().as_secs(), seconds, "{text}");
        }
        for text in ["", "10", "h", "5 minutes", "-1h", "1.5h", "99999999999999999999d", "1y"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn durations_are_shown_in_their_largest_whole_unit() {
        for (seconds, text) in [(0, "0s"), (90, "90s"), (3_600, "1h"), (86_400, "1d"), (5_400, "90m")] {
            assert_eq!(HumanDuration::seconds(seconds).to_string(), text);
        }
        assert_eq!([age(5), age(300), age(7_300), age(200_000)], ["5s", "5m", "2h", "2d"]);
    }
}
