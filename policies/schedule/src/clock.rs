//! Weekdays and times of day, from milliseconds since the epoch alone.

use std::borrow::Cow;
use std::fmt;

use eto_policy_sdk::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

/// Minutes of a week.
pub(crate) const MINUTES_PER_WEEK: u32 = 7 * 24 * 60;

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Weekday {
    /// From Monday on.
    pub const ALL: [Weekday; 7] =
        [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

    /// Monday is 0.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// A time of day, `HH:MM`, 00:00 to 24:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(u32);

impl TimeOfDay {
    /// Minutes since midnight, 0 to 1440.
    pub fn minutes(self) -> u32 {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let (hours, minutes) = text.split_once(':')?;
        let number = |digits: &str| {
            let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
            if plain { digits.parse::<u32>().ok() } else { None }
        };
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        let total = hours * 60 + minutes;
        (minutes < 60 && total <= 24 * 60).then_some(TimeOfDay(total))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        TimeOfDay::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is no time of day, HH:MM up to 24:00")))
    }
}

impl JsonSchema for TimeOfDay {
    fn schema_name() -> Cow<'static, str> {
        "TimeOfDay".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$" })
    }
}

/// The minute of the week, from Monday 00:00 of local time on.
pub(crate) fn minute_of_week(now_ms: u64, utc_offset_minutes: i32) -> u32 {
    // The epoch began on a Thursday.
    const THURSDAY: i64 = 3 * 24 * 60;
    let minutes = i64::try_from(now_ms / 60_000).unwrap_or(i64::MAX / 2);
    let local = minutes + THURSDAY + i64::from(utc_offset_minutes);
    u32::try_from(local.rem_euclid(i64::from(MINUTES_PER_WEEK))).unwrap_or(0)
}

/// For people: `Tue 14:05`.
pub(crate) fn text(minute: u32) -> String {
    let day = Weekday::ALL.get((minute / (24 * 60)) as usize).copied().unwrap_or(Weekday::Mon);
    format!("{day:?} {}", TimeOfDay(minute % (24 * 60)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn days_and_times_follow_from_the_epoch() {
        assert_eq!(text(minute_of_week(0, 0)), "Thu 00:00");
        assert_eq!(text(minute_of_week(1_800_000_000_000, 0)), "Fri 08:00"); // 2027-01-15T08:00:00Z
        assert_eq!(text(minute_of_week(1_800_000_000_000, -8 * 60 - 1)), "Thu 23:59");
        assert_eq!(text(minute_of_week(1_800_000_000_000, 14 * 60)), "Fri 22:00");
    }

    #[test]
    fn times_are_two_digits_each_up_to_24() {
        assert_eq!(TimeOfDay::parse("24:00").unwrap().minutes(), 1440);
        assert_eq!(TimeOfDay::parse("07:30").unwrap().minutes(), 450);
        for bad in ["24:01", "7:30", "07:60", "+7:30", "0730", "", "25:00", "07:3x"] {
            assert_eq!(TimeOfDay::parse(bad), None, "{bad}");
        }
    }
}
