//! What the controller's decisions depend on besides the cluster's state.

use std::time::Duration;

/// The controller's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `num.partitions`: of a topic that does not say. 1 or more; 1.
    pub num_partitions: i32,
    /// `default.replication.factor`: of a topic that does not say. 1 to `replication_factor_max`; 1.
    pub default_replication_factor: i32,
    /// The most replicas a new partition may have; more get INVALID_REPLICATION_FACTOR. 1 to 32,767; 1, because brokers
    /// do not replicate partitions yet: a second replica would never hold what the first has acknowledged.
    pub replication_factor_max: i32,
    /// `broker.session.timeout.ms`: after this long without a heartbeat a broker is fenced. 9 s.
    pub session_timeout: Duration,
    /// After this long without a heartbeat stream a broker is fenced: the time it has to reconnect. 500 ms.
    pub disconnect_grace: Duration,
    /// How many producer ids a broker gets at once. 1000, as in Kafka.
    pub producer_id_block: i32,
    /// The most partitions one request may create. 10,000, as in Kafka.
    pub partitions_per_request_max: usize,
    /// The most partitions a cluster may have. 1,000,000.
    pub partitions_max: usize,
    /// The most changes the Raft log may have under way; more get THROTTLING_QUOTA_EXCEEDED. 1024.
    pub changes_in_flight_max: usize,
}

/// Two settings that disagree, or one that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Out of range.
    #[error("{name} must be {expected}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The first must not exceed the second.
    #[error("{smaller} must not exceed {larger}")]
    Disagree {
        /// Which.
        smaller: &'static str,
        /// Which.
        larger: &'static str,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            num_partitions: 1,
            default_replication_factor: 1,
            replication_factor_max: 1,
            session_timeout: Duration::from_secs(9),
            disconnect_grace: Duration::from_millis(500),
            producer_id_block: 1000,
            partitions_per_request_max: 10_000,
            partitions_max: 1_000_000,
            changes_in_flight_max: 1024,
        }
    }
}

impl Config {
    /// Checks ranges and that settings agree.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |name, expected, holds: bool| {
            if holds { Ok(()) } else { Err(ConfigError::OutOfRange { name, expected }) }
        };
        range("num.partitions", "at least 1", self.num_partitions >= 1)?;
        let factors = 1..=i32::from(i16::MAX);
        range(
            "default.replication.factor",
            "from 1 to 32767",
            factors.contains(&self.default_replication_factor),
        )?;
        range("replication-factor-max", "from 1 to 32767", factors.contains(&self.replication_factor_max))?;
        if self.default_replication_factor > self.replication_factor_max {
            return Err(ConfigError::Disagree {
                smaller: "default.replication.factor",
                larger: "replication-factor-max (brokers do not replicate partitions yet)",
            });
        }
        range("broker.session.timeout.ms", "at least 1", !self.session_timeout.is_zero())?;
        range("producer-id-block", "at least 1", self.producer_id_block >= 1)?;
        range("changes-in-flight-max", "at least 1", self.changes_in_flight_max >= 1)?;
        if self.disconnect_grace > self.session_timeout {
            return Err(ConfigError::Disagree {
                smaller: "disconnect-grace-ms",
                larger: "broker.session.timeout.ms",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disagrees_is_named() {
        assert_eq!(Config::default().validate(), Ok(()));
        let say = |config: Config| config.validate().unwrap_err().to_string();
        assert_eq!(
            say(Config { default_replication_factor: 3, ..Config::default() }),
            "default.replication.factor must not exceed replication-factor-max (brokers do not replicate \
             partitions yet)"
        );
        let three = Config { default_replication_factor: 3, replication_factor_max: 3, ..Config::default() };
        assert_eq!(three.validate(), Ok(()));
        assert_eq!(
            say(Config { replication_factor_max: 0, ..Config::default() }),
            "replication-factor-max must be from 1 to 32767"
        );
    }
}
