//! Inputs of every kind, hostile ones too, from a seed: for properties such as "never out of bounds, never a panic".

use crate::{
    Bounds, Capacity, Framework, JobFacts, KeptState, MemberColumns, Metric, MetricKind, MetricTarget, NONE,
    NodeColumns, PlacementInput, Quality, Readiness, ResizeFacts, ScalingInput, Signal, SignalShape, Sizes,
    WorkerColumns, WorkerPhase, WorkerRequest,
};

/// A stream of values from a seed (`SplitMix64`). The same seed gives the same values.
#[derive(Clone, Debug)]
pub struct Source(u64);

impl Source {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        Source(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        b ^ (b >> 31)
    }

    /// A number below `end` (0 if that is 0).
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    fn below32(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(u64::from(end))).unwrap_or(0)
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T], or: T) -> T {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        of.get(at).copied().unwrap_or(or)
    }

    /// A share of 0.0 to 1.0; now and then something no source should give.
    fn amount(&mut self) -> f64 {
        if self.once_in(12) {
            return self
                .pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, f64::MAX, f64::MIN_POSITIVE, 1e18], 0.0);
        }
        f64::from(self.below32(1001)) / 1000.0
    }

    fn time(&mut self, now: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => now.saturating_add(self.below(100_000)),
            _ => now.saturating_sub(self.below(7_200_000)),
        }
    }

    fn ids(&mut self) -> u32 {
        if self.once_in(5) { NONE } else { self.below32(6) }
    }

    fn many<T>(&mut self, count: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..count).map(|_| one(self)).collect()
    }
}

/// A scaling input whose signals have these names. Bounds and legal sizes are always sensible, since the host checks
/// them; all measured values are anything.
pub fn any_scaling(source: &mut Source, signals: &[&str], config: &str) -> ScalingInput {
    let now_ms = 1_800_000_000_000 + source.below(10_000_000_000);
    let count = usize::try_from(source.below(9)).unwrap_or(0);
    let min = source.below32(6);
    let max = min + source.below32(60);
    let legal: Vec<u32> =
        if source.once_in(3) { (min..=max).filter(|n| n % (1 + min % 4) == 0).collect() } else { Vec::new() };
    let signals: Vec<Signal> = signals.iter().map(|name| any_signal(source, name, count, now_ms)).collect();
    let metrics = source.below(4);
    ScalingInput {
        now_ms,
        seed: source.next(),
        job: any_job(source, now_ms),
        bounds: Bounds { min, max, legal, tolerance_up: 0.1, tolerance_down: source.pick(&[0.0, 0.1, 1.0], 0.1) },
        sizes: Sizes {
            replicas: source.below32(max + 5),
            target: source.below32(max + 5),
            current: source.below32(max + 5),
            ready: source.below32(max + 5),
        },
        workers: any_workers(source, count, now_ms),
        metrics: (0..metrics).map(|_| any_metric(source, signals.len())).collect(),
        signals,
        capacity: Capacity { fits: source.pick(&[0, 1, 7, NONE], 0), pending: source.below32(3) },
        resize: ResizeFacts {
            last_ms: source.time(now_ms),
            last_cost_ms: source.pick(&[0, 30_000, 900_000, u64::MAX], 0),
            last_steps_lost: source.once_in(2).then(|| source.pick(&[0, 40, u64::MAX], 0)),
            last_from: source.below32(20),
            last_refused: source.once_in(4),
        },
        config: config.to_owned(),
        state: source.once_in(2).then(|| KeptState { version: source.below32(3), bytes: b"{\"size\":2}".to_vec() }),
    }
}

fn any_job(source: &mut Source, now_ms: u64) -> JobFacts {
    JobFacts {
        namespace: "team-a".to_owned(),
        name: "job".to_owned(),
        uid: "7b1e8d1a-0000-4000-8000-000000000001".to_owned(),
        framework: source.pick(&[Framework::PyTorch, Framework::Jax], Framework::Custom),
        generation: source.below(10),
        round: source.below(10),
        created_ms: source.time(now_ms),
        running_since_ms: source.time(now_ms),
        failures: source.below32(4),
    }
}

fn any_workers(source: &mut Source, count: usize, now: u64) -> WorkerColumns {
    let phases =
        [WorkerPhase::Pending, WorkerPhase::Running, WorkerPhase::Running, WorkerPhase::Failed, WorkerPhase::Unknown];
    let ready = [Readiness::Unknown, Readiness::Ready, Readiness::Ready, Readiness::NotReady];
    WorkerColumns {
        index: (0..).take(count).collect(),
        phase: source.many(count, |s| s.pick(&phases, WorkerPhase::Succeeded)),
        ready: source.many(count, |s| s.pick(&ready, Readiness::Unknown)),
        started_ms: source.many(count, |s| s.time(now)),
        ready_changed_ms: source.many(count, |s| s.time(now)),
        deleting: source.many(count, |s| s.once_in(6)),
        node: source.many(count, Source::ids),
    }
}

fn any_signal(source: &mut Source, name: &str, count: usize, now: u64) -> Signal {
    let qualities = [Quality::Ok, Quality::Ok, Quality::Partial, Quality::Stale, Quality::Absent, Quality::Invalid];
    let shape = if source.once_in(4) { SignalShape::Job } else { SignalShape::PerWorker };
    let len = if shape == SignalShape::Job { 1 } else { count };
    let past = usize::try_from(source.below(5)).unwrap_or(0);
    Signal {
        name: name.to_owned(),
        shape,
        quality: source.pick(&qualities, Quality::Warming),
        coverage: source.amount(),
        age_ms: source.below(600_000),
        window_ms: source.pick(&[0, 60_000, u64::MAX], 0),
        values: source.many(len, Source::amount),
        requests: source.many(len, |s| s.pick(&[0.0, 1.0, 1.0, 8.0], 1.0)),
        sampled_ms: source.many(len, |s| s.time(now)),
        history_ms: source.many(past, |s| s.time(now)),
        history: source.many(past, Source::amount),
    }
}

fn any_metric(source: &mut Source, signals: usize) -> Metric {
    let kinds = [MetricKind::Resource, MetricKind::ContainerResource, MetricKind::Pods, MetricKind::Object];
    let target = match source.below(3) {
        0 => MetricTarget::Utilization(source.pick(&[0, 1, 50, 300, u32::MAX], 80)),
        1 => MetricTarget::AverageValue(source.amount()),
        _ => MetricTarget::Value(source.amount()),
    };
    Metric {
        kind: source.pick(&kinds, MetricKind::External),
        name: source.pick(&["cpu", "memory", "qps"], "cpu").to_owned(),
        signal: u32::try_from(source.below(signals as u64 + 1)).unwrap_or(0),
        target,
    }
}

/// A placement input: up to 8 nodes and 12 members, anything measured.
pub fn any_placement(source: &mut Source, config: &str) -> PlacementInput {
    let now_ms = 1_800_000_000_000;
    let nodes = usize::try_from(source.below(9)).unwrap_or(0);
    let members = usize::try_from(source.below(13)).unwrap_or(0);
    let sizes = |s: &mut Source| s.many(nodes, |s| if s.once_in(9) { s.amount() } else { f64::from(s.below32(9)) });
    let nodes = NodeColumns {
        free_cpu: sizes(source),
        free_memory: sizes(source),
        free_gpus: sizes(source),
        total_cpu: sizes(source),
        total_memory: sizes(source),
        total_gpus: sizes(source),
        zone: source.many(nodes, Source::ids),
        rack: source.many(nodes, Source::ids),
        members: source.many(nodes, |s| s.pick(&[0, 0, 1, 3, u32::MAX], 0)),
        faults: source.many(nodes, |s| s.below32(4)),
    };
    PlacementInput {
        now_ms,
        seed: source.next(),
        job: any_job(source, now_ms),
        nodes,
        members: MemberColumns {
            index: (0..).take(members).collect(),
            node: source.many(members, Source::ids),
            ready: source.many(members, |s| !s.once_in(5)),
            started_ms: source.many(members, |s| s.time(now_ms)),
            protected: source.many(members, |s| s.once_in(6)),
        },
        request: WorkerRequest {
            cpu: source.pick(&[0.0, 1.0, 2.5, f64::MAX], 1.0),
            memory: source.pick(&[0.0, 1.0], 1.0),
            gpus: source.pick(&[0.0, 0.0, 1.0], 0.0),
        },
        add: (100..).take(usize::try_from(source.below(10)).unwrap_or(0)).collect(),
        drop: source.below32(15),
        config: config.to_owned(),
        state: None,
    }
}

/// Whether an answer is one that the host takes, and stays within the bounds.
///
/// # Errors
/// What is wrong with it.
pub fn check_scaling(input: &ScalingInput, decision: &crate::ScalingDecision) -> Result<(), String> {
    check_reasons(&decision.reasons)?;
    if let Some(target) = decision.target
        && !(input.bounds.min..=input.bounds.max).contains(&target)
    {
        return Err(format!("{target} is not in {}..={}", input.bounds.min, input.bounds.max));
    }
    if decision.next_look_seconds == Some(0) {
        return Err("next_look_seconds is 0".to_owned());
    }
    if decision.state.as_ref().is_some_and(|s| s.len() > 64 * 1024) {
        return Err("more than 64 KiB of state".to_owned());
    }
    Ok(())
}

/// Whether a placement is one that the host takes: workers to place once each, on nodes that have room for them all;
/// victims once each, as many as asked for where there are so many, never one that is protected.
///
/// # Errors
/// What is wrong with it.
pub fn check_placement(input: &PlacementInput, decision: &crate::PlacementDecision) -> Result<(), String> {
    check_reasons(&decision.reasons)?;
    let mut nodes: Vec<crate::Node> = input.nodes.iter().collect();
    let mut open = input.add.clone();
    for place in &decision.places {
        let at =
            open.iter().position(|w| *w == place.worker).ok_or(format!("{place:?}: placed twice, or not asked for"))?;
        open.remove(at);
        let node = nodes.get_mut(place.node as usize).ok_or(format!("{place:?}: no such node"))?;
        if !node.fits(&input.request) {
            return Err(format!("{place:?}: the node is full"));
        }
        node.take(&input.request);
    }
    let mut left: Vec<crate::Member> = input.members.iter().filter(|m| !m.protected).collect();
    let wanted = left.len().min(input.drop as usize);
    for victim in &decision.victims {
        let at = left.iter().position(|m| m.index == *victim).ok_or(format!("victim {victim}: twice, or protected"))?;
        left.remove(at);
    }
    if decision.victims.len() == wanted {
        Ok(())
    } else {
        Err(format!("{} victims of {wanted}", decision.victims.len()))
    }
}

fn check_reasons(reasons: &[crate::Reason]) -> Result<(), String> {
    let good = |r: &crate::Reason| {
        let finite = |v: Option<f64>| v.is_none_or(f64::is_finite);
        let code = !r.code.is_empty() && r.code.len() <= 63 && r.code.bytes().all(|b| b.is_ascii_alphanumeric());
        code && r.message.chars().count() <= 256 && finite(r.value) && finite(r.target)
    };
    if (1..=16).contains(&reasons.len()) && reasons.iter().all(good) { Ok(()) } else { Err(format!("{reasons:?}")) }
}
