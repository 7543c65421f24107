//! What a metric asks for, or why it can't be judged.

use eto_policy_sdk::prelude::*;

/// The size that one metric asks for.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// Workers.
    pub(crate) replicas: u32,
    /// The size it compares with.
    pub(crate) current: u32,
    /// Name of the metric.
    pub(crate) metric: String,
    /// What was measured and aimed at: per cent of the request for a utilisation, else in the metric's unit.
    pub(crate) measured: f64,
    pub(crate) target: f64,
    /// What those two are, for people: "% of the request", "per worker", "in all".
    pub(crate) unit: &'static str,
}

impl Proposal {
    pub(crate) fn reason(&self) -> Reason {
        let code = match self.replicas.cmp(&self.current) {
            std::cmp::Ordering::Greater => "AboveTarget",
            std::cmp::Ordering::Less => "BelowTarget",
            std::cmp::Ordering::Equal => "AtTarget",
        };
        let text = format!(
            "{} is {} {}, the target {}: {} workers",
            self.metric, self.measured, self.unit, self.target, self.replicas
        );
        Reason::new(code, text).signal(&*self.metric).value(self.measured).target(self.target)
    }
}

/// Why a metric can't be judged.
#[derive(Debug)]
pub(crate) enum Fault {
    /// There is nothing to go by; it may come back by itself.
    NoSample { metric: String, kind: MetricKind, why: String },
    /// The job's owner must change something.
    Mend { metric: String, kind: MetricKind, why: String },
}

impl Fault {
    pub(crate) fn no_sample(metric: &Metric, why: impl Into<String>) -> Self {
        Fault::NoSample { metric: metric.name.clone(), kind: metric.kind, why: why.into() }
    }

    pub(crate) fn mend(metric: &Metric, why: impl Into<String>) -> Self {
        Fault::Mend { metric: metric.name.clone(), kind: metric.kind, why: why.into() }
    }

    /// The reason, under the code that the controller's condition `ScalingActive` would carry.
    pub(crate) fn reason(&self) -> Reason {
        let (Fault::NoSample { metric, kind, why } | Fault::Mend { metric, kind, why }) = self;
        let code = match kind {
            MetricKind::Resource => "FailedGetResourceMetric",
            MetricKind::ContainerResource => "FailedGetContainerResourceMetric",
            MetricKind::Pods => "FailedGetPodsMetric",
            MetricKind::Object => "FailedGetObjectMetric",
            MetricKind::External => "FailedGetExternalMetric",
        };
        Reason::new(code, format!("{metric} can't be judged: {why}")).signal(&**metric)
    }

    /// What the owner must do, if that is the fault.
    pub(crate) fn to_mend(&self) -> Option<String> {
        match self {
            Fault::NoSample { .. } => None,
            Fault::Mend { metric, why, .. } => Some(format!("{metric}: {why}")),
        }
    }
}
