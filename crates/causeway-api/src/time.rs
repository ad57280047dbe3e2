//! A moment in Kubernetes' format: RFC 3339, UTC, whole seconds.
//!
//! There is no clock here: functions that need the current time take it as an argument.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Seconds since 1970 that print as `2026-11-15T19:17:31Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(Timestamp);

impl Time {
    /// Returns the second that contains `moment`. Moments outside the years 0 to 9999 have no RFC 3339 form
    /// and are clamped.
    pub fn new(moment: Timestamp) -> Time {
        Time::from_second(moment.as_second())
    }

    pub fn from_second(second: i64) -> Time {
        Time(
            Timestamp::from_second(second.clamp(SECOND_MIN, SECOND_MAX))
                .expect("the bounds are inside jiff's range"),
        )
    }

    pub fn as_second(self) -> i64 {
        self.0.as_second()
    }

    /// Whole seconds from `earlier` to `self`, never negative: clocks of replicas differ.
    pub fn since(self, earlier: Time) -> u64 {
        u64::try_from(self.as_second() - earlier.as_second()).unwrap_or(0)
    }
}

// 0000-01-01T00:00:00Z and 9999-12-30T00:00:00Z: the range of RFC 3339 with four digits, less a day that jiff
// keeps for offsets.
const SECOND_MIN: i64 = -62_167_219_200;
const SECOND_MAX: i64 = 253_402_128_000;

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Time, jiff::Error> {
        text.parse::<Timestamp>().map(Time::new)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            de::Error::invalid_value(de::Unexpected::Str(&text), &"a time like \"2026-11-15T19:17:31Z\"")
        })
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// A moment in microseconds that prints as `2026-11-15T19:17:31.123456Z`: Kubernetes' MicroTime. Go reads it only with all six
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MicroTime(Timestamp);

impl MicroTime {
    pub fn new(moment: Timestamp) -> MicroTime {
        let moment = moment.clamp(Time::from_second(SECOND_MIN).0, Time::from_second(SECOND_MAX).0);
        MicroTime(Timestamp::from_microsecond(moment.as_microsecond()).unwrap_or(moment))
    }

    /// Returns the second that contains it.
    pub fn time(self) -> Time {
        Time::new(self.0)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.0))
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MicroTime, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map(MicroTime::new).map_err(|_| {
            let example = "a time like \"2026-11-15T19:17:31.123456Z\"";
            de::Error::invalid_value(de::Unexpected::Str(&text), &example)
        })
    }
}

impl JsonSchema for MicroTime {
    fn schema_name() -> Cow<'static, str> {
        "MicroTime".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_utc_and_whole_seconds() {
        check("2026-11-15T19:17:31Z", "2026-11-15T19:17:31Z");
        check("2026-11-15T19:17:31.999Z", "2026-11-15T19:17:31Z");
        check("2026-11-15T20:17:31+01:00", "2026-11-15T19:17:31Z");
        check("0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z");
        check("-000001-01-01T00:00:00Z", "0000-01-01T00:00:00Z");
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let time: Time = serde_json::from_value(text.into()).unwrap();
        assert_eq!(serde_json::to_value(time).unwrap(), expected);
    }

    #[test]
    fn a_micro_time_has_six_digits() {
        for (text, expected) in [
            ("2026-11-15T19:17:31Z", "2026-11-15T19:17:31.000000Z"),
            ("2026-11-15T19:17:31.1234567Z", "2026-11-15T19:17:31.123456Z"),
            ("2026-11-15T20:17:31.5+01:00", "2026-11-15T19:17:31.500000Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.500000Z"),
        ] {
            let time: MicroTime = serde_json::from_value(text.into()).unwrap();
            assert_eq!(serde_json::to_value(time).unwrap(), expected);
        }
    }
}
