//! The words of Semel: one newtype for each kind of number that must never be mistaken for another.
//!
//! This crate holds no logic beyond what makes a number what it is (ordering, wrapping, formatting). It does
//! no I/O, knows no wire format and derives no serde: each boundary converts for itself, so a change of one
//! format can't change another.
//!
//! Start with [`offset`] (positions in a log), [`epoch`] (who fences whom), [`producer`] (idempotence),
//! [`cluster`] (brokers, topics, partitions) and [`units`] (time and sizes).

pub mod cluster;
pub mod epoch;
pub mod offset;
pub mod producer;
pub mod units;

pub use cluster::{
    BrokerId, ControllerId, PartitionIndex, TopicId, TopicName, TopicNameError, TopicPartition,
};
pub use epoch::{BrokerEpoch, ControllerEpoch, CoordinatorEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch};
pub use offset::{Offset, OffsetRange};
pub use producer::{ProducerEpoch, ProducerId, Sequence};
pub use units::{Bytes64, Millis, Timestamp};

/// Declares an integer newtype with the traits that every number of Semel has: total order, `Display` of the
/// bare number, and `get` to leave the type at a boundary.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            /// The bare number, for a boundary that has no types.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}
pub(crate) use number;
