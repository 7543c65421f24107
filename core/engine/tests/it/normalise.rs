//! HPA v2's normalisation, row by row (tables G to K of the reference on autoscalers).
//!
//! Rows that do not apply:
//! - H, `1000,3,3,2000 D 20p/60`: Kubernetes' own table skips it by a flag; it holds here and is tested.
//! - K: "7 outdated": Go marks an event that is too old and keeps it until its place is taken; here its time says that
//!   it is too old, so there is no mark. The log has the same entries.
//! - I and K, "no behaviour, nothing stored" is `longest` = 0 here: without policies there is no period to look back.

use std::time::Duration;

use eto_engine::decision::Limiter;
use eto_engine::guard::behavior::{
    change_since, limit_legacy, limit_rates, longest, stabilize, stabilize_legacy, store_event,
};
use eto_engine::job::{Behavior, RateKind, RatePolicy, ScalingRules, SelectPolicy};
use eto_engine::time::Time;

use crate::common::{NOW, ago, secs};

const TOO_FEW: Option<Limiter> = Some(Limiter::TooFewReplicas);
const TOO_MANY: Option<Limiter> = Some(Limiter::TooManyReplicas);
const UP: Option<Limiter> = Some(Limiter::ScaleUpLimit);
const DOWN: Option<Limiter> = Some(Limiter::ScaleDownLimit);

#[test]
fn g_limits_without_behavior() {
    let rows = [
        (5, 7, 3, 8, 7, None),
        (3, 1, 2, 8, 2, TOO_FEW),
        (1, 0, 0, 10, 0, None),
        (20, 1000, 1, 10, 10, TOO_MANY),
        (3, 1000, 1, 2000, 6, UP),
    ];
    for (current, desired, min, max, want, by) in rows {
        assert_eq!(limit_legacy(current, desired, min, max), (want, by), "{current} -> {desired} in {min}..={max}");
    }
}

fn p(value: u32, period: u64) -> RatePolicy {
    RatePolicy { kind: RateKind::Pods, value, period: secs(period) }
}

fn pc(value: u32, period: u64) -> RatePolicy {
    RatePolicy { kind: RateKind::Percent, value, period: secs(period) }
}

fn rules(policies: &[RatePolicy], select: SelectPolicy) -> ScalingRules {
    ScalingRules { stabilization: Duration::ZERO, select, policies: policies.to_vec(), tolerance: 0.1 }
}

/// HPA's defaults with these policies in the place of its own.
fn behavior(up: &[RatePolicy], down: &[RatePolicy]) -> Behavior {
    let up = if up.is_empty() { vec![p(4, 15), pc(100, 15)] } else { up.to_vec() };
    let down = if down.is_empty() { vec![pc(100, 15)] } else { down.to_vec() };
    Behavior { up: rules(&up, SelectPolicy::Max), down: rules(&down, SelectPolicy::Max) }
}

/// Events spread evenly over the last 120 seconds.
fn events(changes: &[u32]) -> Vec<(Time, u32)> {
    let step = 120 / (u64::try_from(changes.len()).unwrap() + 1);
    (1..).zip(changes).map(|(i, n)| (ago(120 - i * step), *n)).collect()
}

struct Row {
    size: (u32, u32),
    range: (u32, u32),
    up: Vec<RatePolicy>,
    down: Vec<RatePolicy>,
    ups: &'static [u32],
    downs: &'static [u32],
    want: (u32, Option<Limiter>),
}

fn row(size: (u32, u32), range: (u32, u32), want: (u32, Option<Limiter>)) -> Row {
    Row { size, range, up: vec![], down: vec![], ups: &[], downs: &[], want }
}

impl Row {
    fn up(mut self, policies: &[RatePolicy]) -> Self {
        self.up = policies.to_vec();
        self
    }
    fn down(mut self, policies: &[RatePolicy]) -> Self {
        self.down = policies.to_vec();
        self
    }
    fn after(mut self, ups: &'static [u32], downs: &'static [u32]) -> Self {
        (self.ups, self.downs) = (ups, downs);
        self
    }
}

fn check(rows: Vec<Row>) {
    for (at, r) in rows.into_iter().enumerate() {
        let (ups, downs) = (events(r.ups), events(r.downs));
        let got = limit_rates(r.size, r.range, &behavior(&r.up, &r.down), (&ups, &downs), NOW);
        assert_eq!(got, r.want, "row {at}: {:?} in {:?}", r.size, r.range);
    }
}

#[test]
fn h_rates_without_events() {
    check(vec![
        row((100, 1000), (100, 150), (150, TOO_MANY)),
        row((3, 1000), (1, 2000), (4, UP)).up(&[pc(1, 60)]),
        row((1000, 3), (3, 2000), (980, DOWN)).down(&[p(20, 60)]),
        row((10, 50), (1, 1000), (20, UP)),
        row((10, 500), (1, 1000), (110, UP)).up(&[p(100, 60), pc(100, 60)]),
        row((10, 500), (1, 1000), (20, UP)).up(&[p(2, 60), pc(100, 60)]),
        row((10, 50), (1, 1000), (50, None)).up(&[p(100, 60)]),
        row((10, 50), (1, 1000), (40, UP)).up(&[p(30, 60)]),
        row((10, 50), (1, 1000), (30, UP)).up(&[pc(200, 60)]),
        row((100, 2), (1, 1000), (80, DOWN)).down(&[p(20, 60), pc(1, 60)]),
        row((100, 2), (1, 1000), (98, DOWN)).down(&[p(2, 60), pc(1, 60)]),
        row((10, 0), (1, 1000), (1, TOO_FEW)).down(&[p(100, 60)]),
        row((10, 2), (5, 1000), (5, TOO_FEW)).down(&[pc(100, 60)]),
        row((10, 2), (1, 1000), (5, DOWN)).down(&[p(5, 60)]),
        row((10, 5), (1, 1000), (5, None)).down(&[pc(50, 60)]),
    ]);
}

#[test]
fn h_rates_after_growing() {
    let few: &[u32] = &[1, 5, 9];
    let many: &[u32] = &[8, 12, 9, 11];
    check(vec![
        row((100, 500), (1, 200), (200, TOO_MANY)).up(&[p(300, 60)]).after(few, &[]),
        row((100, 500), (1, 1000), (100, UP)).up(&[p(5, 120)]).after(few, &[]),
        row((100, 500), (1, 1000), (235, UP)).up(&[p(150, 120)]).after(few, &[]),
        row((100, 500), (1, 1000), (255, UP)).up(&[pc(200, 120)]).after(few, &[]),
        row((100, 200), (1, 1000), (200, None)).up(&[p(1000, 60)]).after(many, &[]),
        row((100, 200), (1, 1000), (200, None)).up(&[p(1000, 120), pc(100, 60)]).after(many, &[]),
        row((100, 200), (1, 1000), (200, None)).up(&[p(1000, 30), pc(100, 60)]).after(many, &[]),
    ]);
}

#[test]
fn h_rates_after_shrinking() {
    let few: &[u32] = &[1, 5, 9];
    let many: &[u32] = &[8, 12, 9, 11];
    check(vec![
        row((10, 5), (1, 1000), (5, None)).after(&[], few),
        row((100, 0), (1, 1000), (1, TOO_FEW)).down(&[p(115, 120)]).after(&[], few),
        row((100, 0), (5, 1000), (5, TOO_FEW)).down(&[p(130, 120)]).after(&[], few),
        row((100, 2), (5, 1000), (5, TOO_FEW)).down(&[pc(100, 120)]).after(&[], few),
        row((100, 2), (1, 1000), (100, DOWN)).down(&[p(5, 120)]).after(&[], few),
        row((100, 0), (1, 1000), (56, DOWN)).down(&[pc(50, 120)]).after(&[], &[2, 4, 6]),
        row((100, 0), (1, 1000), (100, DOWN)).down(&[pc(10, 120)]).after(&[], &[10, 10, 10]),
        row((10, 5), (1, 1000), (5, None)).down(&[pc(1000, 120)]).after(&[], few),
        row((100, 5), (1, 1000), (5, None)).down(&[p(1000, 60)]).after(&[], many),
        row((100, 5), (1, 1000), (5, None)).down(&[p(1000, 120), pc(100, 60)]).after(&[], many),
        row((100, 5), (1, 1000), (5, None)).down(&[p(1000, 30), pc(100, 60)]).after(&[], many),
    ]);
}

#[test]
fn h_select_policies() {
    let two = [p(2, 60), pc(50, 60)];
    let with = |select| Behavior { up: rules(&two, select), down: rules(&two, select) };
    let none = (&[][..], &[][..]);
    let limit = |from, to, select| limit_rates((from, to), (1, 1000), &with(select), none, NOW);
    assert_eq!(limit(1, 100, SelectPolicy::Min), (2, UP));
    assert_eq!(limit(5, 1, SelectPolicy::Min), (3, DOWN));
    assert_eq!(limit(1, 100, SelectPolicy::Max), (3, UP));
    assert_eq!(limit(5, 1, SelectPolicy::Max), (2, DOWN));
    assert_eq!(limit(5, 100, SelectPolicy::Disabled), (5, UP));
    assert_eq!(limit(5, 1, SelectPolicy::Disabled), (5, DOWN));
    // No policies: no rate.
    let free = Behavior { up: rules(&[], SelectPolicy::Max), down: rules(&[], SelectPolicy::Max) };
    assert_eq!(limit_rates((5, 100), (1, 1000), &free, none, NOW), (100, None));
    assert_eq!(limit_rates((5, 1), (1, 1000), &free, none, NOW), (1, None));
}

/// Binary floating point as in Go is kept on purpose, so that a job moved from an HPA gets the same sizes; exact
/// arithmetic would give 110, 55, 5, 2 and 1.
#[test]
fn percentages_round_as_in_go() {
    let none = (&[][..], &[][..]);
    let up = |from, percent| limit_rates((from, 1000), (1, 2000), &behavior(&[pc(percent, 60)], &[]), none, NOW).0;
    let down = |from, percent| limit_rates((from, 0), (0, 2000), &behavior(&[], &[pc(percent, 60)]), none, NOW).0;
    assert_eq!((up(100, 10), up(50, 10), up(100, 9)), (111, 56, 110));
    assert_eq!((down(50, 90), down(10, 80), down(5, 80)), (4, 1, 0));
}

/// Values with their age.
type Log = &'static [(u32, u64)];

fn recs(all: &[(u32, u64)]) -> Vec<(Time, u32)> {
    all.iter().map(|(value, minutes)| (ago(minutes * 60), *value)).collect()
}

#[test]
fn i_stabilisation_without_behavior() {
    let rows: [(Log, u32, u32, usize); 5] = [
        (&[], 5, 5, 1),
        (&[(4, 2), (5, 1)], 3, 5, 3),
        (&[(1, 2), (2, 1)], 3, 3, 3),
        (&[(10, 10), (9, 9)], 3, 3, 2),
        (&[(10, 10), (4, 1), (5, 2), (9, 9)], 3, 5, 4),
    ];
    for (before, new, want, length) in rows {
        let mut log = recs(before);
        assert_eq!((stabilize_legacy(&mut log, new, NOW), log.len()), (want, length), "{before:?}, {new}");
        assert!(log.contains(&(NOW, new)));
    }
}

#[test]
fn j_stabilisation_with_behavior() {
    let rows: [(u32, u32, Log, u64, u64, u32); 9] = [
        (100, 5, &[], 0, 0, 5),
        (100, 3, &[(4, 2), (5, 1)], 0, 180, 5),
        (1, 7, &[(4, 2), (5, 1)], 300, 0, 4),
        (100, 3, &[(1, 2), (2, 1)], 300, 0, 3),
        (1, 3, &[(4, 2), (5, 1)], 0, 300, 3),
        (100, 3, &[(10, 10), (9, 9)], 300, 300, 3),
        (1, 100, &[(10, 10), (9, 9)], 300, 300, 100),
        (100, 3, &[(10, 10), (4, 1), (5, 2), (9, 9)], 0, 180, 5),
        (1, 100, &[(10, 100), (6, 1), (5, 2), (9, 3)], 300, 0, 5),
    ];
    for (current, new, before, up, down, want) in rows {
        let mut log = recs(before);
        let (got, by) = stabilize(&mut log, current, new, (secs(up), secs(down)), NOW);
        assert_eq!(got, want, "{current} -> {new}, {before:?}");
        let by_want = if new >= current { Limiter::ScaleUpStabilized } else { Limiter::ScaleDownStabilized };
        assert_eq!(by, (want != new).then_some(by_want));
        assert!(log.contains(&(NOW, new)), "the unstabilised size is recorded");
    }
    // The last of the old places is used again.
    let mut log = recs(&[(10, 10), (9, 9)]);
    stabilize(&mut log, 100, 3, (secs(300), secs(300)), NOW);
    assert_eq!(log, [(ago(600), 10), (NOW, 3)]);
}

#[test]
fn k_log_of_scale_events() {
    let log = |all: &[(u32, u64)]| -> Vec<(Time, u32)> { all.iter().map(|(n, s)| (ago(*s), *n)).collect() };
    // (events before, longest period, sum of the last 60 s, values after adding 5)
    let rows: [(Log, u64, f64, &[u32]); 8] = [
        (&[], 0, 0.0, &[]),
        (&[], 60, 0.0, &[5]),
        (&[(7, 61)], 0, 0.0, &[7]),
        (&[(7, 61)], 60, 0.0, &[5]),
        (&[(7, 58)], 60, 7.0, &[7, 5]),
        (&[(7, 61), (6, 59)], 60, 6.0, &[5, 6]),
        (&[(8, 29), (6, 59), (7, 61), (9, 61)], 60, 14.0, &[8, 6, 7, 5]),
        (&[(7, 58), (6, 59)], 120, 13.0, &[7, 6, 5]),
    ];
    for (before, period, sum, after) in rows {
        let mut events = log(before);
        #[allow(clippy::float_cmp)]
        {
            assert_eq!(change_since(&events, secs(60), NOW), sum, "{before:?}");
        }
        store_event(&mut events, 5, secs(period), NOW);
        assert_eq!(events.iter().map(|(_, n)| *n).collect::<Vec<_>>(), after, "{before:?}");
    }
    assert_eq!(longest(&rules(&[p(1, 30), pc(1, 60)], SelectPolicy::Max)), secs(60));
}
