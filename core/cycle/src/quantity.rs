//! Kubernetes quantities (`500m`, `16Gi`, `1e3`), read exactly.

use serde_json::Value;

/// A quantity in billionths of its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nano(pub i128);

/// Billionths in a unit.
const UNIT: i128 = 1_000_000_000;
/// Kubernetes caps quantities at this many units.
const MAX: i128 = i64::MAX as i128;

impl Nano {
    /// The whole units of it.
    pub fn whole(self) -> u64 {
        u64::try_from(self.0 / UNIT).unwrap_or(0)
    }

    /// The value in units. Exact up to 15 significant digits.
    #[allow(clippy::cast_precision_loss)] // What a policy reads is an f64 anyway.
    pub fn as_f64(self) -> f64 {
        if self.0 % UNIT == 0 { (self.0 / UNIT) as f64 } else { self.0 as f64 / UNIT as f64 }
    }
}

/// Reads a quantity. What is finer than a billionth is rounded up, what is above 2^63-1 is capped, as Kubernetes does.
///
/// # Errors
/// Says what it found where no quantity was.
pub fn parse(text: &str) -> Result<Nano, String> {
    let bad = || {
        format!(
            "`{text}` is not a quantity; write a number with an optional suffix such as `500m`, `2`, `16Gi` or `1e3`"
        )
    };
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(bad());
    }
    let scale = scale_of(suffix).ok_or_else(bad)?;
    let magnitude = scaled(whole, fraction, scale).min(MAX * UNIT);
    Ok(Nano(if negative { -magnitude } else { magnitude }))
}

/// Reads a quantity from a JSON number or text.
///
/// # Errors
/// As [`parse`].
pub fn from_value(value: &Value) -> Result<Nano, String> {
    match value {
        Value::String(s) => parse(s.trim()),
        Value::Number(n) => parse(&n.to_string()),
        _ => Err("a quantity must be a number or text such as `500m`".to_string()),
    }
}

/// What a suffix multiplies by: a power of ten, or a whole factor.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Times(i128),
}

fn scale_of(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Times(1 << 10),
        "Mi" => Scale::Times(1 << 20),
        "Gi" => Scale::Times(1 << 30),
        "Ti" => Scale::Times(1 << 40),
        "Pi" => Scale::Times(1 << 50),
        "Ei" => Scale::Times(1 << 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            Scale::Ten(exponent.parse::<i32>().ok()?.clamp(-60, 60))
        }
    })
}

/// `whole.fraction * scale` in billionths, rounded up; saturates far above [`MAX`].
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let (shift, factor) = match scale {
        Scale::Ten(e) => (e, 1),
        Scale::Times(f) => (0, f),
    };
    // digits * 10^(shift - places) units = digits * 10^(shift - places + 9) billionths.
    let fraction = fraction.trim_end_matches('0');
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = shift.saturating_sub(places).saturating_add(9);
    let mut digits: i128 = 0;
    for d in whole.bytes().chain(fraction.bytes()) {
        let Some(next) = digits.checked_mul(10).and_then(|x| x.checked_add(i128::from(d - b'0'))) else {
            // More than 38 digits: far above the cap unless the fraction is absurdly long; either way the value is
            // decided by its leading digits.
            return saturated(whole, scale);
        };
        digits = next;
    }
    let Some(digits) = digits.checked_mul(factor) else { return i128::MAX };
    if power >= 0 {
        let ten = 10_i128.checked_pow(power.unsigned_abs());
        return ten.and_then(|t| digits.checked_mul(t)).unwrap_or(if digits == 0 { 0 } else { i128::MAX });
    }
    match 10_i128.checked_pow(power.unsigned_abs()) {
        Some(t) => digits / t + i128::from(digits % t != 0),
        None => i128::from(digits != 0),
    }
}

/// For numbers of very many digits: the whole part alone, plus one billionth for the rest.
fn saturated(whole: &str, scale: Scale) -> i128 {
    let whole = whole.trim_start_matches('0');
    if whole.len() > 37 { i128::MAX } else { scaled(whole, "", scale).saturating_add(1) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;

    #[test]
    fn reads_every_form() {
        for (text, want) in [
            ("1", 1.0),
            ("500m", 0.5),
            ("1.5Gi", 1.5 * 1024.0 * 1024.0 * 1024.0),
            ("0.1", 0.1),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1E3", 1000.0),
            ("1E", 1e18),
            ("2k", 2000.0),
            ("100n", 1e-7),
            ("-3", -3.0),
            ("+3", 3.0),
            ("0.000000000000000000000000000000000000000000001", 1e-9),
            ("0000000000000000000000000000000000000000000000007", 7.0),
        ] {
            assert_eq!(parse(text).unwrap().as_f64(), want, "{text}");
        }
    }

    #[test]
    fn finer_than_a_billionth_is_rounded_up_and_huge_is_capped() {
        assert_eq!(parse("0.1n").unwrap(), Nano(1));
        assert_eq!(parse("99999999999999999999999999999999999999999999Ei").unwrap(), Nano(MAX * UNIT));
        assert_eq!(parse("1e60").unwrap(), Nano(MAX * UNIT));
        assert_eq!(parse("0e60").unwrap(), Nano(0));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "-", "m", "1.2.3", "1Gib", "1 Gi", "ten", "1e", "1ex", "."] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
