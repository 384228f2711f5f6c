//! What a controller shows of itself.

use semel_control::node::{Leadership, Status};
use semel_service::metrics::{Histogram, IntCounter, IntGauge, LATENCY_BUCKETS, Registry};

#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) is_leader: IntGauge,
    pub(crate) epoch: IntGauge,
    pub(crate) committed: IntGauge,
    pub(crate) applied: IntGauge,
    pub(crate) first: IntGauge,
    pub(crate) in_flight: IntGauge,
    pub(crate) watchers: IntGauge,
    pub(crate) watchers_cut: IntCounter,
    pub(crate) leader_changes: IntCounter,
    pub(crate) changes: IntCounter,
    pub(crate) refused: IntCounter,
    pub(crate) syncs: IntCounter,
    pub(crate) sync_seconds: Histogram,
    pub(crate) messages_sent: IntCounter,
    pub(crate) messages_dropped: IntCounter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| registry.gauge(&format!("controller_{name}"), help);
        let counter = |name: &str, help: &str| registry.counter(&format!("controller_{name}"), help);
        Self {
            is_leader: gauge("is_leader", "1 while this controller leads and takes requests, else 0"),
            epoch: gauge("epoch", "The controller epoch (Raft term) this controller is in"),
            committed: gauge("committed_index", "The last metadata index known to be committed"),
            applied: gauge("applied_index", "The last metadata index applied"),
            first: gauge("first_index", "The first metadata index that is kept in the log"),
            in_flight: gauge("changes_in_flight", "Changes handed to the log and not yet decided"),
            watchers: gauge("watchers", "Nodes that watch the metadata"),
            watchers_cut: counter("watchers_cut_total", "Watchers that were too slow and were cut off"),
            leader_changes: counter("leader_changes_total", "Changes of the leader this controller knows"),
            changes: counter("changes_total", "Metadata changes applied"),
            refused: counter("refused_requests_total", "Requests answered with an error"),
            syncs: counter("log_syncs_total", "Times the log was made durable"),
            sync_seconds: registry.histogram(
                "controller_log_sync_seconds",
                "How long making the log durable took",
                LATENCY_BUCKETS,
            ),
            messages_sent: counter("raft_messages_sent_total", "Raft messages handed to the network"),
            messages_dropped: counter(
                "raft_messages_dropped_total",
                "Raft messages that a peer did not take",
            ),
        }
    }

    pub(crate) fn show(&self, status: &Status) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.show_leadership(&status.leadership);
        self.committed.set(signed(status.committed.0));
        self.applied.set(signed(status.applied.0));
        self.first.set(signed(status.first.0));
        self.in_flight.set(signed(status.in_flight as u64));
    }

    fn show_leadership(&self, leadership: &Leadership) {
        self.is_leader.set(i64::from(leadership.is_active));
        self.epoch.set(i64::from(leadership.controller_epoch.0));
    }
}
