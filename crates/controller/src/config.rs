//! A controller's settings.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use semel_model::ControllerId;

/// Everything a controller needs to know to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `node.id`: its id among the voters; not 0.
    pub node_id: ControllerId,
    /// Where its log lies. Made if it is not there.
    pub data_dir: PathBuf,
    /// `controller.quorum.voters`: every voter's gRPC address, its own among them.
    pub voters: BTreeMap<ControllerId, String>,
    /// The id to give a new cluster; `None` draws one. Ignored once the cluster exists.
    pub cluster_id: Option<String>,
    /// What decisions depend on.
    pub control: semel_control::Config,
    /// How long a tick is. 50 ms.
    pub tick: Duration,
    /// `controller.quorum.election.timeout.ms`: without a word from a leader for this long, and up to twice as
    /// long, a voter asks for votes. At least 4 ticks; 500 ms.
    pub election_timeout: Duration,
    /// How often a leader speaks. At most half of the election timeout; 100 ms.
    pub heartbeat_interval: Duration,
    /// A snapshot is kept after this many changes. 4096.
    pub snapshot_entries: u64,
    /// Or after this many bytes of them. 16 MiB.
    pub snapshot_bytes: u64,
    /// How many changes stay behind a snapshot for voters and nodes that are a little late. 1024.
    pub keep_entries: u64,
    /// The most nodes that watch at a time. 4096.
    pub watchers_max: usize,
    /// In bytes: what the store keeps in memory. 1 MiB.
    pub store_cache_bytes: u64,
}

/// A setting that is out of range, or two that disagree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The node's own id is not among the voters.
    #[error("node.id {0} is not among controller.quorum.voters")]
    NotAVoter(ControllerId),
    /// Raft's "nobody".
    #[error("a controller's id must not be 0")]
    ZeroId,
    /// An address that is none.
    #[error("voter {id} has the address {address:?}: expected host:port")]
    Address {
        /// Whose.
        id: ControllerId,
        /// As given.
        address: String,
    },
    /// Out of range.
    #[error("{name} must be {expected}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// Of the decisions.
    #[error(transparent)]
    Control(#[from] semel_control::ConfigError),
}

impl Config {
    /// With the defaults.
    #[must_use]
    pub fn new(node_id: ControllerId, data_dir: PathBuf, voters: BTreeMap<ControllerId, String>) -> Self {
        Self {
            node_id,
            data_dir,
            voters,
            cluster_id: None,
            control: semel_control::Config::default(),
            tick: Duration::from_millis(50),
            election_timeout: Duration::from_millis(500),
            heartbeat_interval: Duration::from_millis(100),
            snapshot_entries: 4096,
            snapshot_bytes: 16 << 20,
            keep_entries: 1024,
            watchers_max: 4096,
            store_cache_bytes: 1 << 20,
        }
    }

    /// Checks ranges and that settings agree.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.voters.contains_key(&self.node_id) {
            return Err(ConfigError::NotAVoter(self.node_id));
        }
        for (id, address) in &self.voters {
            if id.0 == 0 {
                return Err(ConfigError::ZeroId);
            }
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(ConfigError::Address { id: *id, address: address.clone() });
            }
        }
        let range = |name, expected, holds: bool| {
            if holds { Ok(()) } else { Err(ConfigError::OutOfRange { name, expected }) }
        };
        range("tick-ms", "from 1 to 1000", (1..=1000).contains(&self.tick.as_millis()))?;
        range(
            "controller.quorum.election.timeout.ms",
            "at least 4 ticks, and at most 1000",
            (4..=1000).contains(&self.ticks(self.election_timeout)),
        )?;
        range(
            "heartbeat-interval-ms",
            "at least a tick, and at most half of controller.quorum.election.timeout.ms",
            self.heartbeat_interval >= self.tick && self.heartbeat_interval * 2 <= self.election_timeout,
        )?;
        range("snapshot-entries", "at least 1", self.snapshot_entries >= 1)?;
        range("snapshot-bytes", "at least 1", self.snapshot_bytes >= 1)?;
        range("watchers-max", "at least 1", self.watchers_max >= 1)?;
        if let Some(cluster_id) = &self.cluster_id {
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            range(
                "cluster-id",
                "1 to 255 of a-z, A-Z, 0-9, '-' and '_'",
                (1..=255).contains(&cluster_id.len()) && cluster_id.chars().all(is_name),
            )?;
        }
        self.control.validate()?;
        Ok(())
    }

    pub(crate) fn node(&self) -> semel_control::NodeConfig {
        let election = self.ticks(self.election_timeout);
        semel_control::NodeConfig {
            id: self.node_id,
            voters: self.voters.keys().copied().collect(),
            cluster_id: self.cluster_id.clone(),
            election_ticks: (election, election * 2),
            heartbeat_ticks: self.ticks(self.heartbeat_interval),
            snapshot_entries: self.snapshot_entries,
            snapshot_bytes: self.snapshot_bytes,
            keep_entries: self.keep_entries,
        }
    }

    fn ticks(&self, span: Duration) -> usize {
        usize::try_from(span.as_millis() / self.tick.as_millis().max(1)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_disagree_are_named() {
        let good = || {
            let voters = BTreeMap::from([(ControllerId(1), "h:1".to_owned())]);
            Config::new(ControllerId(1), "x".into(), voters)
        };
        assert_eq!(good().validate(), Ok(()));
        let say = |change: &dyn Fn(&mut Config)| {
            let mut config = good();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert_eq!(say(&|c| c.node_id = ControllerId(2)), "node.id 2 is not among controller.quorum.voters");
        assert_eq!(
            say(&|c| drop(c.voters.insert(ControllerId(2), "nowhere".into()))),
            "voter 2 has the address \"nowhere\": expected host:port"
        );
        assert!(say(&|c| c.election_timeout = Duration::from_millis(100)).contains("election.timeout"));
        assert!(
            say(&|c| c.heartbeat_interval = Duration::from_millis(400)).contains("heartbeat-interval-ms")
        );
        assert!(say(&|c| c.cluster_id = Some("a b".into())).contains("cluster-id"));
        assert!(
            say(&|c| c.control.disconnect_grace = Duration::from_secs(60)).contains("disconnect-grace-ms")
        );
    }
}
