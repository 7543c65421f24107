use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

/// What the gateway counts. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(crate) connections: Gauge<i64, AtomicI64>,
    pub(crate) streams: Gauge<i64, AtomicI64>,
    pub(crate) members: Gauge<i64, AtomicI64>,
    pub(crate) waiting: Gauge<i64, AtomicI64>,
    pub(crate) synced: Gauge<i64, AtomicI64>,
    pub(crate) reports: Family<Outcome, Counter>,
    pub(crate) records: Family<Outcome, Counter>,
    pub(crate) reviews: Family<Outcome, Counter>,
    pub(crate) refused: Family<Reason, Counter>,
}

impl Metrics {
    /// Registers all of them, with names that begin with `gateway_`.
    pub fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("gateway_connections", "Connections of agents that are open", self.connections.clone());
        r.register("gateway_streams", "Watch streams of agents that are open", self.streams.clone());
        r.register("gateway_members", "Members whose agents talk to this replica", self.members.clone());
        r.register("gateway_records_waiting", "Records of members that wait to be written", self.waiting.clone());
        r.register("gateway_etcd_synced", "1 while all of etcd is known and watched", self.synced.clone());
        r.register("gateway_reports", "Reports of agents by what became of them", self.reports.clone());
        r.register("gateway_records", "Writes of records by what became of them", self.records.clone());
        r.register("gateway_token_reviews", "Tokens that were looked up, not cached", self.reviews.clone());
        r.register("gateway_refused", "Connections and requests that were turned away", self.refused.clone());
    }

    pub(crate) fn report(&self, outcome: &'static str) {
        self.reports.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn record(&self, outcome: &'static str) {
        self.records.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn review(&self, outcome: &'static str) {
        self.reviews.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }
}

/// As a gauge has it.
pub(crate) fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
