//! Durations as people write them: `500ms`, `15s`, `2m`, `1h30m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    pub const fn seconds(s: u64) -> Self {
        Span(Duration::from_secs(s))
    }

    pub const fn millis(ms: u64) -> Self {
        Span(Duration::from_millis(ms))
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0 => write!(f, "0s"),
            _ if ms.is_multiple_of(3_600_000) => write!(f, "{}h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{}m", ms / 60_000),
            _ if ms.is_multiple_of(1000) => write!(f, "{}s", ms / 1000),
            _ => write!(f, "{ms}ms"),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || format!("not a duration; write it as 500ms, 15s, 2m or 1h30m (got `{s}`)");
        let mut rest = s.trim();
        if rest.is_empty() {
            return Err(bad());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let (number, tail) = rest.split_at(digits);
            let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit);
            let scale = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(bad()),
            };
            let number: u64 = number.parse().map_err(|_| bad())?;
            total = number.checked_mul(scale).and_then(|n| n.checked_add(total)).ok_or_else(bad)?;
            rest = tail;
        }
        Ok(Span::millis(total))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(Text)
    }
}

/// Takes a duration's text, and says how it is written where there is something else (a bare number, say).
struct Text;

impl Visitor<'_> for Text {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit in quotes: \"500ms\", \"15s\", \"2m\" or \"1h30m\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn read_and_written_alike() {
        for (text, ms) in [("500ms", 500), ("15s", 15_000), ("2m", 120_000), ("1h", 3_600_000), ("0s", 0)] {
            assert_eq!(text.parse::<Span>().unwrap(), Span::millis(ms), "{text}");
            assert_eq!(Span::millis(ms).to_string(), text);
        }
        assert_eq!("1h30m".parse::<Span>().unwrap(), Span::seconds(5400));
    }

    #[test]
    fn what_is_not_a_duration_says_so() {
        for text in ["", "15", "s", "1.5s", "-3s", "3d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(text.parse::<Span>().unwrap_err().contains("not a duration"), "{text}");
        }
    }
}
