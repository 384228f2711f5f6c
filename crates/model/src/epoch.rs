//! Epochs: each says which life of its giver a message belongs to, and so who is fenced.
//!
//! "Epoch" never stands alone in Semel: comparing epochs of two kinds does not compile.

use crate::number;

number! {
    /// The Raft term under which the controller leader acts. Nodes refuse a command or delta with an older one.
    ControllerEpoch(i32)
}
number! {
    /// One registration of a broker: the Raft index of its registration record (KIP-631). Fences a broker's
    /// earlier life.
    BrokerEpoch(i64)
}
number! {
    /// One leadership of a partition. Stamped into each batch; fences a deposed leader and stale reads
    /// (KIP-101, KIP-320). Kafka's "no epoch" is -1.
    LeaderEpoch(i32)
}
number! {
    /// Counts the changes of a partition's state at the controller; ISR changes are compare-and-set on it (KIP-497).
    PartitionEpoch(i32)
}
number! {
    /// The epoch of a coordinator's lease on a shard, carried in the control records it writes.
    CoordinatorEpoch(i32)
}
number! {
    /// The Raft index of a metadata record: the position in the order in which every node applies changes.
    MetadataIndex(u64)
}

impl LeaderEpoch {
    /// "Unknown" on Kafka's wire and in batches that were never led.
    pub const NONE: Self = Self(-1);
    /// The epoch of a partition's first leader.
    pub const FIRST: Self = Self(0);

    /// The epoch of the next leadership.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl PartitionEpoch {
    /// The epoch of a new partition.
    pub const FIRST: Self = Self(0);

    /// The epoch after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl BrokerEpoch {
    /// "Not registered".
    pub const NONE: Self = Self(-1);
}

impl MetadataIndex {
    /// Before every record.
    pub const ZERO: Self = Self(0);

    /// The next position.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
