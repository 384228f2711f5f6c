//! What a topic and its broker set for a replica.

use semel_model::Millis;

/// When a record counts as kept by a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is on stable storage.
    Fsync,
    /// When it is written; the log syncs after `flush.messages` or `flush.ms`.
    Interval,
    /// When it is written; the operating system syncs when it likes (Kafka's default).
    Os,
}

/// A replica's settings. Changes arrive whole, through [`Replica::reconfigure`](crate::Replica::reconfigure).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// `semel.durability`. Default [`Durability::Fsync`].
    pub durability: Durability,
    /// `min.insync.replicas`, 1 at least. Default 1. More than there are replicas counts as all of them.
    pub min_insync_replicas: usize,
    /// `producer.id.expiration.ms`, 1 at least. Default a day. How long a producer that is idle and has no open
    /// transaction is remembered.
    pub producer_id_expiration: Millis,
    /// How many producers are remembered, 1 at least. Default 32,768, about 8 MB. Beyond it those least recently
    /// used are forgotten, but never one with an open transaction.
    pub producers_max: usize,
    /// `transaction.partition.verification.enable`. Default true: a transaction opens only after its coordinator
    /// said that it is ongoing (KIP-890).
    pub transaction_verification: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            min_insync_replicas: 1,
            producer_id_expiration: Millis(86_400_000),
            producers_max: 32_768,
            transaction_verification: true,
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No record would ever be kept by enough replicas, or by any.
    #[error("min.insync.replicas is 0, it must be 1 at least")]
    MinInsyncReplicas,
    /// Producers would be forgotten at once.
    #[error("producer.id.expiration.ms is {0}, it must be 1 at least")]
    ProducerIdExpiration(Millis),
    /// No producer could be remembered.
    #[error("the number of remembered producers is 0, it must be 1 at least")]
    ProducersMax,
}

impl Config {
    /// Checks the ranges.
    pub const fn validate(&self) -> Result<(), ConfigError> {
        if self.min_insync_replicas == 0 {
            return Err(ConfigError::MinInsyncReplicas);
        }
        if self.producer_id_expiration.0 < 1 {
            return Err(ConfigError::ProducerIdExpiration(self.producer_id_expiration));
        }
        if self.producers_max == 0 {
            return Err(ConfigError::ProducersMax);
        }
        Ok(())
    }
}
