//! Formats single cells: ages as kubectl prints them, sizes, short lists.

use serde_json::Value;

/// The text of an empty cell.
pub(super) const NONE: &str = "<none>";

pub(super) fn word(text: &str) -> Value {
    if text.is_empty() { NONE.into() } else { text.into() }
}

/// The first three entries, and the number of the remaining ones.
pub(super) fn list(items: &[String]) -> Value {
    match items {
        [] => NONE.into(),
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first},{second},{third} + {} more...", rest.len()).into()
        }
        few => few.join(",").into(),
    }
}

/// A duration as kubectl prints ages: coarser the longer it is.
pub fn age(seconds: u64) -> String {
    let (minutes, hours, days, years) =
        (seconds / 60, seconds / 3_600, seconds / 86_400, seconds / 31_536_000);
    let two = |big: u64, big_unit: char, small: u64, small_unit: char| match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if years < 8 => two(years, 'y', days % 365, 'd'),
        () => format!("{years}y"),
    }
}

/// A number of bytes in the largest unit with a nonzero integer part.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count}B");
    }
    // The leading zeros give the power of two, so rounding cannot produce "1024.0KiB".
    let power = ((63 - count.leading_zeros()) / 10) as usize;
    let value = count as f64 / (1u64 << (10 * power)) as f64;
    format!("{value:.1}{}", UNITS[power - 1])
}

pub(super) fn milliseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.1}ms"),
        value => format!("{value:.0}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 3_600;
        const DAY: u64 = 86_400;
        const YEAR: u64 = 365 * DAY;
        let rows = [
            (0, "0s"),
            (119, "119s"),
            (2 * MINUTE, "2m"),
            (2 * MINUTE + 1, "2m1s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE + 1, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + MINUTE, "3h1m"),
            (8 * HOUR + MINUTE, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY + HOUR, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR + DAY, "8y"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn sizes_use_the_unit_a_person_would() {
        for (count, expected) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0KiB"),
            (1536, "1.5KiB"),
            (5 << 20, "5.0MiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }

    #[test]
    fn a_long_list_stays_short() {
        let items: Vec<String> = (0..10_000).map(|n| format!("s{n}")).collect();
        assert_eq!(list(&items), "s0,s1,s2 + 9997 more...");
        assert_eq!(list(&items[..3]), "s0,s1,s2");
        assert_eq!(list(&[]), "<none>");
    }
}
