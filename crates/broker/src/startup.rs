//! What a broker needs before it can register: log directories, addresses, and the limits of its file.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use semel_env::{Entropy, RealDisk};
use semel_kafka_gateway::{Config as GatewayConfig, ListenerConfig, fetch_session::SessionConfig};
use semel_log::{DirectoryId, Identity, LogDir, LogDirError, Opened};
use semel_metadata::config::Effective;
use semel_model::BrokerEpoch;

use crate::{
    config::{Config, ConfigError},
    directory::{Attention, Checkpoints, Directory},
    failure::chain,
    flusher::Flusher,
    metrics::PartitionMetrics,
};

/// Kafka's number for "no limit".
const NO_LIMIT: usize = i32::MAX as usize;

/// Why a broker can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error("broker configuration is not valid")]
    Config(#[from] ConfigError),
    /// The Kafka listener can't be bound.
    #[error("cannot listen for Kafka clients on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// An advertised address is not `host:port`.
    #[error("{setting} {address:?} is not host:port")]
    Advertised {
        /// Its name in the file.
        setting: &'static str,
        /// As configured.
        address: String,
    },
    /// The limits of connections contradict each other.
    #[error("kafka listener settings are not valid")]
    Gateway(#[from] semel_kafka_gateway::ConfigError),
    /// A log directory is not usable.
    #[error("cannot use log directory")]
    LogDir(#[from] LogDirError),
    /// Two directories hold different clusters' data.
    #[error("log directories belong to different clusters: {0:?} and {1:?}")]
    TwoClusters(String, String),
    /// The system refused a thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The controller refused this broker, for a reason that no retry mends.
    #[error("the controller refused this broker")]
    Refused(#[source] semel_proto::v1::Error),
    /// The broker was told to stop before it served. Nothing failed, and its logs are as they were.
    #[error("told to stop before the start was done")]
    Stopped,
}

/// The log directories of a start.
pub(crate) struct LogDirs {
    /// Each with what was found in it.
    pub(crate) opened: Vec<(LogDir<RealDisk>, Opened)>,
    /// What the disk refused to open.
    pub(crate) unusable: Vec<UnusableDir>,
}

/// A log directory that the broker runs without: its disk refused.
#[derive(Debug)]
pub(crate) struct UnusableDir {
    pub(crate) path: PathBuf,
    pub(crate) error: LogDirError,
}

impl LogDirs {
    /// Opens the directories of the configuration.
    ///
    /// Errors: none of them can be used; or one is in use, or another node's or cluster's, which is a mistake of whoever
    /// wrote the file and no failure of a disk.
    pub(crate) fn open(config: &Config, entropy: &dyn Entropy) -> Result<Self, StartError> {
        let mut dirs = Self { opened: Vec::new(), unusable: Vec::new() };
        for path in &config.log_dirs {
            let identity = Identity {
                cluster_id: None,
                node_id: config.id,
                new_directory_id: DirectoryId::from_bytes(entropy.uuid().into_bytes()),
            };
            let (dir, found) = match LogDir::open(RealDisk, path.clone(), &identity) {
                Ok(opened) => opened,
                Err(error @ LogDirError::Storage(_)) => {
                    dirs.leave_out(path.clone(), error);
                    continue;
                }
                Err(error) => {
                    dirs.give_back();
                    return Err(error.into());
                }
            };
            for name in &found.damaged_checkpoints {
                tracing::warn!(
                    directory = %path.display(), checkpoint = name,
                    "checkpoint is damaged, logs are read instead"
                );
            }
            if !found.clean && !found.partitions.is_empty() {
                tracing::info!(directory = %path.display(), "was not closed properly, recovering");
            }
            dirs.opened.push((dir, found));
        }
        dirs.or_none_is_left()
    }

    fn leave_out(&mut self, path: PathBuf, error: LogDirError) {
        tracing::error!(
            directory = %path.display(), error = chain(&error),
            "cannot use log directory, its partitions are offline"
        );
        self.unusable.push(UnusableDir { path, error });
    }

    fn or_none_is_left(mut self) -> Result<Self, StartError> {
        if self.opened.is_empty()
            && let Some(first) = self.unusable.pop()
        {
            return Err(first.error.into());
        }
        Ok(self)
    }

    /// The cluster that the directories belong to; empty if all are new.
    pub(crate) fn cluster_id(&self) -> Result<String, StartError> {
        let mut agreed = String::new();
        for (dir, _) in &self.opened {
            let id = &dir.meta().cluster_id;
            if agreed.is_empty() {
                agreed.clone_from(id);
            } else if !id.is_empty() && *id != agreed {
                return Err(StartError::TwoClusters(agreed, id.clone()));
            }
        }
        Ok(agreed)
    }

    /// Binds new directories to the cluster. Errors: as [`open`](Self::open).
    pub(crate) fn bind_cluster(&mut self, cluster_id: &str) -> Result<(), StartError> {
        for (mut dir, found) in std::mem::take(&mut self.opened) {
            match dir.bind_cluster(cluster_id) {
                Ok(()) => self.opened.push((dir, found)),
                Err(error @ LogDirError::Storage(_)) => self.leave_out(dir.path().to_owned(), error),
                Err(error) => return Err(error.into()),
            }
        }
        match self.unusable.pop() {
            Some(last) if self.opened.is_empty() => Err(last.error.into()),
            Some(last) => {
                self.unusable.push(last);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Which directories were properly ended, and by which life of the broker: in the order of `opened`.
    pub(crate) fn clean_marks(&self) -> Vec<Option<BrokerEpoch>> {
        self.opened.iter().map(|(_, found)| clean_mark(found)).collect()
    }

    /// The ids of the directories this process has locked.
    pub(crate) fn ids(&self) -> Vec<Bytes> {
        self.opened
            .iter()
            .map(|(dir, _)| Bytes::copy_from_slice(&dir.meta().directory_id.to_bytes()))
            .collect()
    }

    /// Undoes the opening: nothing was written, so what was properly ended still is.
    pub(crate) fn give_back(&self) {
        for (dir, found) in &self.opened {
            mark_again(dir, clean_mark(found));
        }
    }

    /// Gives each directory its flusher.
    pub(crate) fn in_use(
        self,
        metrics: &PartitionMetrics,
        attention: &Arc<Attention>,
    ) -> Result<Vec<(Arc<Directory>, Opened)>, StartError> {
        self.opened
            .into_iter()
            .enumerate()
            .map(|(number, (dir, found))| {
                let flusher = Flusher::start(number, &metrics.fsync_seconds).map_err(StartError::Thread)?;
                let checkpoints = Checkpoints::found(&found);
                Ok((Arc::new(Directory::new(dir, flusher, attention.clone(), checkpoints)), found))
            })
            .collect()
    }
}

fn clean_mark(found: &Opened) -> Option<BrokerEpoch> {
    found.clean.then_some(found.broker_epoch.unwrap_or(BrokerEpoch::NONE))
}

/// Writes the mark back that the opening took, if there was one.
pub(crate) fn mark_again(dir: &LogDir<RealDisk>, mark: Option<BrokerEpoch>) {
    let Some(epoch) = mark else { return };
    if let Err(error) = dir.mark_clean(epoch) {
        tracing::warn!(error = chain(&error), "cannot mark the log directory as cleanly ended");
    }
}

/// What the cluster is told of the gRPC address: as for the Kafka listener, a server on all addresses that advertises
/// none tells `localhost`, never an address that nobody can connect to.
pub(crate) fn grpc_address(config: &Config, bound: SocketAddr) -> Result<String, StartError> {
    let listener = ListenerConfig {
        name: "gRPC".to_owned(),
        bind: bound.to_string(),
        advertised: config.grpc_advertised.clone(),
    };
    let (host, port) = listener.advertised(bound).ok_or_else(|| StartError::Advertised {
        setting: "grpc.advertised",
        address: config.grpc_advertised.clone().unwrap_or_default(),
    })?;
    if config.grpc_advertised.is_none() && bound.ip().is_unspecified() {
        tracing::warn!(%bound, told = host, "grpc.advertised is not set: only clients on this host can follow it");
    }
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// How the Kafka listener treats connections. `open_files` bounds them: half of what the process may have open, the
/// other half is for logs.
pub(crate) fn gateway_config(effective: &Effective, open_files: u64) -> GatewayConfig {
    let defaults = GatewayConfig::default();
    let size = |name: &str, default: usize| {
        effective.long(name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
    };
    let frame_bytes_max = size("socket.request.max.bytes", defaults.frame_bytes_max);
    // Without a limit of its own, as many as this build was measured with.
    let asked = match size("max.connections", NO_LIMIT) {
        NO_LIMIT => defaults.connections_max,
        asked => asked,
    };
    let room = usize::try_from(open_files / 2).unwrap_or(usize::MAX).max(1);
    if asked > room {
        tracing::warn!(
            asked,
            connections_max = room,
            open_files,
            "the system lets this process open too few files for max.connections: raise its limit (ulimit -n)"
        );
    }
    GatewayConfig {
        frame_bytes_max,
        connections_max: asked.min(room),
        connections_per_ip_max: size("max.connections.per.ip", defaults.connections_per_ip_max),
        idle_max: effective
            .long("connections.max.idle.ms")
            .and_then(|ms| u64::try_from(ms).ok())
            .map_or(defaults.idle_max, Duration::from_millis),
        request_bytes_max: match size("queued.max.request.bytes", 0) {
            // Kafka's "no limit" (-1, and 0): there is always one here, which any allowed request fits.
            0 => defaults.request_bytes_max.max(frame_bytes_max),
            asked => asked,
        },
        ..defaults
    }
}

/// The bounds of the incremental fetch sessions.
pub(crate) fn session_config(effective: &Effective) -> SessionConfig {
    let defaults = SessionConfig::default();
    let slots = effective
        .long("max.incremental.fetch.session.cache.slots")
        .and_then(|slots| usize::try_from(slots).ok());
    SessionConfig { slots: slots.unwrap_or(defaults.slots), ..defaults }
}

#[cfg(test)]
mod tests {
    use semel_env::RealEntropy;
    use semel_metadata::{ClusterImage, config::resolve_broker};

    use super::*;

    fn effective(settings: &[(&str, &str)]) -> Effective {
        let mut config = crate::config::tests::config();
        config.settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        config.validate().unwrap();
        resolve_broker(&ClusterImage::new(), config.id, &Arc::new(config.settings))
    }

    #[test]
    fn settings_of_the_file_are_in_force() {
        let defaults = gateway_config(&effective(&[]), 1 << 20);
        assert_eq!(defaults, GatewayConfig { connections_per_ip_max: NO_LIMIT, ..GatewayConfig::default() });
        assert_eq!(session_config(&effective(&[])), SessionConfig::default());

        let settings = effective(&[
            ("max.connections", "50000"),
            ("max.connections.per.ip", "7"),
            ("queued.max.request.bytes", "209715200"),
            ("connections.max.idle.ms", "1000"),
            ("max.incremental.fetch.session.cache.slots", "3"),
        ]);
        let config = gateway_config(&settings, 1 << 20);
        assert_eq!((config.connections_max, config.connections_per_ip_max), (50_000, 7));
        assert_eq!((config.request_bytes_max, config.idle_max), (200 << 20, Duration::from_secs(1)));
        assert_eq!(session_config(&settings).slots, 3);
    }

    #[test]
    fn connections_leave_room_for_logs() {
        assert_eq!(gateway_config(&effective(&[]), 1024).connections_max, 512);
        assert_eq!(gateway_config(&effective(&[("max.connections", "100")]), 1024).connections_max, 100);
        assert_eq!(gateway_config(&effective(&[("max.connections", "1000")]), 1024).connections_max, 512);
    }

    #[test]
    fn requests_that_are_allowed_always_fit() {
        let large = effective(&[("socket.request.max.bytes", "1073741824")]);
        assert_eq!(gateway_config(&large, 1 << 20).validate(), Ok(()));
        let contradiction = effective(&[("queued.max.request.bytes", "1000")]);
        assert!(gateway_config(&contradiction, 1 << 20).validate().is_err());
    }

    #[test]
    fn nobody_is_told_an_address_that_can_not_be_reached() {
        let told = |advertised: Option<&str>, bound: &str| {
            let mut config = crate::config::tests::config();
            config.grpc_advertised = advertised.map(str::to_owned);
            grpc_address(&config, bound.parse().unwrap()).ok()
        };
        assert_eq!(told(None, "0.0.0.0:9190").as_deref(), Some("localhost:9190"));
        assert_eq!(told(None, "[::]:9190").as_deref(), Some("localhost:9190"));
        assert_eq!(told(None, "127.0.0.1:9190").as_deref(), Some("127.0.0.1:9190"));
        assert_eq!(told(None, "[::1]:9190").as_deref(), Some("[::1]:9190"));
        assert_eq!(told(Some("broker-0.semel:0"), "0.0.0.0:9190").as_deref(), Some("broker-0.semel:9190"));
        assert_eq!(told(Some("broker-0"), "0.0.0.0:9190"), None);
    }

    #[test]
    fn a_directory_whose_disk_refuses_is_left_out_and_marks_are_given_back() {
        let temporary = tempfile::tempdir().unwrap();
        let (good, bad) = (temporary.path().join("good"), temporary.path().join("bad"));
        std::fs::write(&bad, "a file where a directory should be").unwrap();
        let mut config = crate::config::tests::config();
        config.log_dirs = vec![good.clone()];
        let first = LogDirs::open(&config, &RealEntropy).unwrap();
        assert_eq!(first.clean_marks(), [None]);
        first.give_back();
        mark_again(&first.opened[0].0, Some(BrokerEpoch(7)));
        drop(first);

        config.log_dirs = vec![bad.clone(), good.clone()];
        for _ in 0..2 {
            let dirs = LogDirs::open(&config, &RealEntropy).unwrap();
            assert_eq!(dirs.clean_marks(), [Some(BrokerEpoch(7))]);
            assert_eq!(dirs.unusable.iter().map(|dir| &dir.path).collect::<Vec<_>>(), [&bad]);
            // The second start finds the mark again.
            dirs.give_back();
        }

        config.log_dirs = vec![bad];
        assert!(matches!(LogDirs::open(&config, &RealEntropy), Err(StartError::LogDir(_))));
        // What a person must see is no failed disk.
        config.log_dirs = vec![good];
        config.id = semel_model::BrokerId(99);
        let wrong_node = LogDirs::open(&config, &RealEntropy);
        assert!(matches!(wrong_node, Err(StartError::LogDir(LogDirError::InconsistentNodeId { .. }))));
    }
}
