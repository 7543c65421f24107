//! The controller's arithmetic: amounts are whole milli-units in 64-bit integers, ratios are floats, and both are cut
//! off and rounded up where the Go code does it.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "conversions between integers and floats are what this module is about; `as` saturates"
)]

use eto_policy_sdk::MAX_TARGET;

/// An amount (cores, bytes, the unit of a custom metric) in whole milli-units, saturating. Rounding to the nearest
/// undoes the binary fractions of decimal amounts (0.07 cores are 70 milli, not 71).
pub(crate) fn milli(amount: f64) -> i64 {
    (amount * 1000.0).round() as i64
}

/// The amount of so many milli-units.
pub(crate) fn from_milli(milli: i64) -> f64 {
    milli as f64 / 1000.0
}

/// Quotient of two amounts.
pub(crate) fn ratio(used: i64, target: i64) -> f64 {
    used as f64 / target as f64
}

/// `ceil(ratio * count)` as a number of workers.
pub(crate) fn ceil_times(ratio: f64, count: usize) -> u32 {
    replicas((ratio * count as f64).ceil())
}

/// A number of workers: never below 0, never above what the contract takes (the controller's own limit is 2^31 - 1).
pub(crate) fn replicas(count: f64) -> u32 {
    (count as u32).min(MAX_TARGET)
}

/// How far a ratio may be off 1 without being acted on.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    /// Below 1.
    pub(crate) down: f64,
    /// Above 1.
    pub(crate) up: f64,
}

impl Tolerance {
    /// Whether nothing is to be done at this ratio.
    pub(crate) fn covers(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// Sums that saturate instead of wrapping.
pub(crate) fn total(amounts: impl Iterator<Item = i64>) -> i64 {
    amounts.fold(0, i64::saturating_add)
}
