//! `schedule`: sizes by weekday and time of day. Everything follows from `now_ms`, so a replay gives the same sizes.
#![warn(missing_docs)]

mod clock;

use eto_policy_sdk::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

pub use clock::{TimeOfDay, Weekday};

use clock::{MINUTES_PER_WEEK, minute_of_week};

/// A stretch of each week, or of each day, with a size.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Window {
    /// The days on which it begins; none = every day.
    #[serde(default)]
    pub days: Vec<Weekday>,
    /// When it begins, `HH:MM`, from 00:00 to 23:59.
    pub from: TimeOfDay,
    /// When it ends, `HH:MM`, up to 24:00. One that is not after `from` is on the next day.
    pub to: TimeOfDay,
    /// The size wanted in it.
    pub size: u32,
}

impl Window {
    /// Length in minutes, 1 to 1440.
    fn minutes(&self) -> u32 {
        let (from, to) = (self.from.minutes(), self.to.minutes());
        if to > from { to - from } else { to + 24 * 60 - from }
    }

    /// Minutes of the week at which it begins.
    fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        let days = Weekday::ALL.into_iter().filter(|d| self.days.is_empty() || self.days.contains(d));
        days.map(|day| day.number() * 24 * 60 + self.from.minutes())
    }

    fn holds(&self, minute: u32) -> bool {
        self.starts().any(|start| (minute + MINUTES_PER_WEEK - start) % MINUTES_PER_WEEK < self.minutes())
    }

    /// Minutes from `minute` to its next beginning or end, 1 to a week.
    fn next_edge(&self, minute: u32) -> Option<u32> {
        let edges = self.starts().flat_map(|start| [start, start + self.minutes()]);
        edges.map(|edge| (edge + 2 * MINUTES_PER_WEEK - minute - 1) % MINUTES_PER_WEEK + 1).min()
    }
}

/// The config.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ScheduleConfig {
    /// The first window that holds the present time counts.
    pub windows: Vec<Window>,
    /// The size outside of all windows; absent = `spec.replicas`.
    pub otherwise: Option<u32>,
    /// Minutes that local time is ahead of UTC, -720 to 840. Fixed: there is no daylight saving.
    pub utc_offset_minutes: i32,
}

/// The policy.
pub struct Schedule;

impl ScalingPolicy for Schedule {
    const NAME: &'static str = "schedule";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "Sizes by weekday and time of day";
    type Config = ScheduleConfig;

    fn problems(config: &ScheduleConfig) -> Vec<String> {
        let mut problems = Vec::new();
        if !(-720..=840).contains(&config.utc_offset_minutes) {
            problems.push(format!("config.utcOffsetMinutes: -720 to 840, is {}", config.utc_offset_minutes));
        }
        for (at, window) in config.windows.iter().enumerate() {
            if window.from.minutes() == 24 * 60 {
                problems.push(format!("config.windows[{at}].from: 24:00 is the next day's 00:00"));
            }
            if window.size > MAX_TARGET {
                problems.push(format!("config.windows[{at}].size: at most {MAX_TARGET}"));
            }
        }
        if config.otherwise.is_some_and(|size| size > MAX_TARGET) {
            problems.push(format!("config.otherwise: at most {MAX_TARGET}"));
        }
        problems
    }

    fn evaluate(input: &ScalingInput, config: &ScheduleConfig) -> Result<ScalingDecision, PolicyError> {
        let minute = minute_of_week(input.now_ms, config.utc_offset_minutes);
        let time = clock::text(minute);
        let window = config.windows.iter().enumerate().find(|(_, w)| w.holds(minute));
        let (size, reason) = if let Some((at, Window { from, to, size, .. })) = window {
            let text = format!("{time} is in windows[{at}], {from} to {to}: {size} workers");
            (*size, Reason::new("InWindow", text))
        } else {
            let size = config.otherwise.unwrap_or(input.sizes.replicas);
            (size, Reason::new("OutsideWindows", format!("{time} is in no window: {size} workers")))
        };
        let decision = ScalingDecision::to(input.clamp(size), reason);
        // Look again right at the next edge: minutes to it, less the seconds of this minute that are over.
        let over = u32::try_from(input.now_ms / 1000 % 60).unwrap_or(0);
        Ok(match config.windows.iter().filter_map(|w| w.next_edge(minute)).min() {
            Some(minutes) => decision.look_again_in(minutes * 60 - over),
            None => decision,
        })
    }
}

export_policy!(Scaling: Schedule);
