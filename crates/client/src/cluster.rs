//! The cluster as a client sees it: brokers, leaders, and the one way in which calls are retried.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel_env::{Clock, Entropy, RealClock, RealEntropy};
use semel_model::{BrokerId, LeaderEpoch, PartitionIndex};
use semel_proto::v1::{
    self, ErrorCode, admin_service_client::AdminServiceClient, cluster_service_client::ClusterServiceClient,
    log_service_client::LogServiceClient,
};
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    Admin, Config, Error, Tried, backoff,
    error::{Failed, Safety},
};

/// A lookup of a topic that isn't known is repeated this often, because a broker may lag behind the one that
/// created it; then the topic is taken not to exist.
const UNKNOWN_TOPIC_ATTEMPTS: u32 = 5;

/// A connection to a cluster. Cheap to clone; all clones share channels and what is known of leaders.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// As given, checked.
    bootstrap: Vec<String>,
    state: Mutex<State>,
    /// Held while metadata are fetched, so that a hundred waiting partitions ask once.
    refresh: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// By address. Bounded by the brokers known plus `bootstrap`.
    channels: BTreeMap<String, Channel>,
    brokers: BTreeMap<BrokerId, BrokerView>,
    topics: BTreeMap<String, Arc<TopicView>>,
    /// Which of the candidates a call to "any broker" goes to; moves on when one fails.
    cursor: usize,
    /// Of the newest view of a topic.
    version: u64,
}

/// A broker as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerView {
    /// Its id.
    pub id: BrokerId,
    /// Where it serves gRPC: `HOST:PORT`.
    pub address: String,
    /// Whether the controller holds it to be out of service.
    pub fenced: bool,
}

/// A topic as some broker described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    /// Its name.
    pub name: Arc<str>,
    /// Its id, 22 letters as Kafka prints them.
    pub topic_id: String,
    /// By number, without gaps.
    pub partitions: Vec<PartitionView>,
    /// The numbers of those that have a leader.
    pub led: Vec<i32>,
    /// Grows with each look; names the view that proved wrong.
    pub version: u64,
}

/// A partition as some broker described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// `None`: nobody leads it now.
    pub leader: Option<BrokerId>,
    /// Of that leadership.
    pub leader_epoch: LeaderEpoch,
}

/// Where a partition's leader is reached.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) address: String,
    /// Of the topic's view it comes from; 0 precedes all.
    pub(crate) version: u64,
}

impl Cluster {
    /// Connects to the first of `servers` (`HOST:PORT` of brokers) that answers, and learns of the others from it.
    ///
    /// Errors: [`Error::NoServers`], [`Error::Address`], and [`Error::Unreachable`] once each was tried.
    pub async fn connect(servers: &[String], config: Config) -> Result<Self, Error> {
        Self::connect_with(servers, config, Arc::new(RealClock::new()), Arc::new(RealEntropy)).await
    }

    /// The same with a clock (it stamps records) and entropy (it spreads retries) of the caller's.
    pub async fn connect_with(
        servers: &[String],
        config: Config,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, Error> {
        let bootstrap: Vec<String> = servers.iter().map(|one| one.trim().to_owned()).collect();
        if bootstrap.is_empty() {
            return Err(Error::NoServers);
        }
        for address in &bootstrap {
            check_address(address)?;
        }
        let inner = Inner {
            config,
            clock,
            entropy,
            bootstrap,
            state: Mutex::default(),
            refresh: tokio::sync::Mutex::default(),
        };
        let cluster = Self { inner: Arc::new(inner) };
        let mut tried = Vec::new();
        for (at, address) in cluster.inner.bootstrap.iter().enumerate() {
            match cluster.describe_at(address).await {
                Ok(_) => {
                    cluster.state().cursor = at;
                    return Ok(cluster);
                }
                Err(failed) => {
                    tried.push(Tried { address: address.clone(), reason: reason(&failed) });
                }
            }
        }
        Err(Error::Unreachable { tried })
    }

    /// Topics, configurations and the cluster.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// The brokers as last seen.
    #[must_use]
    pub fn brokers(&self) -> Vec<BrokerView> {
        self.state().brokers.values().cloned().collect()
    }

    /// What a topic's partitions are and who leads them; asked for once and then remembered until a call proves it
    /// wrong. Errors: [`ErrorCode::UnknownTopicOrPartition`] if the topic isn't there.
    pub async fn topic(&self, name: &str) -> Result<Arc<TopicView>, Error> {
        if let Some(view) = self.topic_cached(name) {
            return Ok(view);
        }
        let doing = format!("find topic {name}");
        self.retry(&doing, Safety::Repeatable, || async move { self.refresh_topic(name, 0).await }).await
    }

    /// Changes in the cluster as they happen, after `after_index` (0: the whole picture first). The stream ends when
    /// the broker that serves it does: ask again after the last index seen.
    pub async fn watch(&self, after_index: u64) -> Result<tonic::Streaming<v1::WatchClusterResponse>, Error> {
        self.retry("watch the cluster", Safety::Repeatable, || async move {
            let address = self.any();
            let mut client = ClusterServiceClient::new(self.channel(&address)?)
                .max_decoding_message_size(self.inner.config.message_bytes_max);
            let call = client.watch_cluster(v1::WatchClusterRequest { after_index });
            self.settle(&address, call).await
        })
        .await
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub(crate) fn entropy(&self) -> &dyn Entropy {
        &*self.inner.entropy
    }

    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        backoff::delay(self.config(), self.entropy(), failures)
    }

    pub(crate) fn topic_cached(&self, name: &str) -> Option<Arc<TopicView>> {
        self.state().topics.get(name).cloned()
    }

    /// Forgets a topic that this client changed.
    pub(crate) fn forget_topic(&self, name: &str) {
        self.state().topics.remove(name);
    }

    /// Runs `attempt` until it succeeds, may not be repeated, or the configuration's attempts or time run out.
    pub(crate) async fn retry<T, F, Fut>(
        &self,
        doing: &str,
        safety: Safety,
        mut attempt: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Failed>>,
    {
        let bound = self.config().attempts.max(1);
        let mut attempts = 0;
        let mut last: Option<Failed> = None;
        let outcome = tokio::time::timeout(self.config().operation_timeout, async {
            loop {
                attempts += 1;
                let failed = match attempt().await {
                    Ok(value) => return Some(value),
                    Err(failed) => failed,
                };
                let unknown = failed.code() == ErrorCode::UnknownTopicOrPartition;
                let bound = if unknown { bound.min(UNKNOWN_TOPIC_ATTEMPTS) } else { bound };
                let again = failed.may_retry(safety) && attempts < bound;
                tracing::debug!(doing, address = failed.address, error = %failed.error, again, "attempt failed");
                last = Some(failed);
                if !again {
                    return None;
                }
                tokio::time::sleep(self.backoff(attempts)).await;
            }
        })
        .await;
        match outcome {
            Ok(Some(value)) => Ok(value),
            Ok(None) | Err(_) => {
                let changes = safety == Safety::Once;
                let failed =
                    last.unwrap_or_else(|| Failed::timed_out(&self.any(), self.config().operation_timeout));
                Err(failed.into_error(doing, attempts, changes))
            }
        }
    }

    /// Waits for a call to `address` within the request timeout; a failure to reach it makes later calls to "any
    /// broker" go to the next.
    pub(crate) async fn settle<T>(
        &self,
        address: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failed> {
        let wait = self.config().request_timeout;
        let failed = match tokio::time::timeout(wait, call).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => Failed::status(address, &status),
            Err(_) => Failed::timed_out(address, wait),
        };
        if failed.fate != crate::error::Fate::Answered || failed.may_retry(Safety::Repeatable) {
            let mut state = self.state();
            if self.candidates(&state).get(state.cursor).is_some_and(|one| one == address) {
                state.cursor += 1;
            }
        }
        Err(failed)
    }

    /// Some broker to ask what every broker can answer.
    pub(crate) fn any(&self) -> String {
        let mut state = self.state();
        let candidates = self.candidates(&state);
        state.cursor %= candidates.len().max(1);
        candidates.into_iter().nth(state.cursor).unwrap_or_default()
    }

    /// The servers to start from, then the brokers that aren't among them.
    fn candidates(&self, state: &State) -> Vec<String> {
        let mut candidates = self.inner.bootstrap.clone();
        for broker in state.brokers.values().filter(|broker| !broker.fenced) {
            if !candidates.contains(&broker.address) {
                candidates.push(broker.address.clone());
            }
        }
        candidates
    }

    /// The leader of a partition. `stale` is the version of the view that proved wrong (0: none did): a view that
    /// isn't newer is fetched again.
    pub(crate) async fn route(
        &self,
        topic: &str,
        partition: PartitionIndex,
        stale: u64,
    ) -> Result<Route, Failed> {
        let view = match self.topic_cached(topic) {
            Some(view) if view.version > stale => view,
            _ => self.refresh_topic(topic, stale).await?,
        };
        let at = usize::try_from(partition.get()).ok();
        let Some(found) = at.and_then(|at| view.partitions.get(at)) else {
            let text =
                format!("topic {topic} has {} partitions, not number {partition}", view.partitions.len());
            return Err(self.local(ErrorCode::UnknownTopicOrPartition, text, view.version));
        };
        let Some(leader) = found.leader else {
            let text = format!("nobody leads {topic}-{partition} now");
            return Err(self.local(ErrorCode::LeaderNotAvailable, text, view.version));
        };
        match self.state().brokers.get(&leader) {
            Some(broker) => Ok(Route { address: broker.address.clone(), version: view.version }),
            None => {
                let text = format!("broker {leader} leads {topic}-{partition} and isn't described");
                Err(self.local(ErrorCode::BrokerNotAvailable, text, view.version))
            }
        }
    }

    /// An error found in metadata: the topic is looked up again before the next try.
    fn local(&self, code: ErrorCode, text: String, version: u64) -> Failed {
        let mut state = self.state();
        state.topics.retain(|_, view| view.version != version);
        drop(state);
        let mut error = v1::Error::new(code, text);
        error.retriable = true;
        Failed::answered(&self.any(), error)
    }

    async fn refresh_topic(&self, name: &str, stale: u64) -> Result<Arc<TopicView>, Failed> {
        let _one = self.inner.refresh.lock().await;
        if let Some(view) = self.topic_cached(name)
            && view.version > stale
        {
            return Ok(view);
        }
        let address = self.any();
        // Brokers first: a leader that is newer than the list of brokers could not be reached.
        self.describe_at(&address).await?;
        let mut client = self.admin_client(&address)?;
        let request = v1::DescribeTopicsRequest { names: vec![name.to_owned()] };
        let response = self.settle(&address, client.describe_topics(request)).await?;
        let Some(topic) = response.topics.into_iter().find(|topic| topic.name == name) else {
            let error =
                v1::Error::new(ErrorCode::UnknownTopicOrPartition, format!("topic {name} does not exist"));
            return Err(Failed::answered(&address, error));
        };
        if let Some(error) = topic.error {
            return Err(Failed::answered(&address, error));
        }
        let mut partitions =
            vec![PartitionView { leader: None, leader_epoch: LeaderEpoch::NONE }; topic.partitions.len()];
        for one in &topic.partitions {
            let at = usize::try_from(one.partition).ok();
            if let Some(slot) = at.and_then(|at| partitions.get_mut(at)) {
                slot.leader = (one.leader >= 0).then_some(BrokerId(one.leader));
                slot.leader_epoch = LeaderEpoch(one.leader_epoch);
            }
        }
        let led = partitions.iter().enumerate().filter(|(_, one)| one.leader.is_some());
        let led = led.filter_map(|(at, _)| i32::try_from(at).ok()).collect();
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let view =
            Arc::new(TopicView { name: name.into(), topic_id: topic.topic_id, partitions, led, version });
        state.topics.insert(name.to_owned(), Arc::clone(&view));
        Ok(view)
    }

    pub(crate) async fn describe_at(&self, address: &str) -> Result<v1::DescribeClusterResponse, Failed> {
        let mut client = self.admin_client(address)?;
        let described =
            self.settle(address, client.describe_cluster(v1::DescribeClusterRequest::default())).await?;
        let mut state = self.state();
        state.brokers = described
            .brokers
            .iter()
            .map(|broker| {
                let view = BrokerView {
                    id: BrokerId(broker.id),
                    address: broker.grpc_address.clone(),
                    fenced: broker.fenced,
                };
                (view.id, view)
            })
            .collect();
        let known: Vec<String> = state.brokers.values().map(|broker| broker.address.clone()).collect();
        let bootstrap = &self.inner.bootstrap;
        state.channels.retain(|address, _| known.contains(address) || bootstrap.contains(address));
        Ok(described)
    }

    pub(crate) fn admin_client(&self, address: &str) -> Result<AdminServiceClient<Channel>, Failed> {
        let bound = self.config().message_bytes_max;
        Ok(AdminServiceClient::new(self.channel(address)?)
            .max_decoding_message_size(bound)
            .max_encoding_message_size(bound))
    }

    pub(crate) fn log_client(&self, address: &str) -> Result<LogServiceClient<Channel>, Failed> {
        let bound = self.config().message_bytes_max;
        Ok(LogServiceClient::new(self.channel(address)?)
            .max_decoding_message_size(bound)
            .max_encoding_message_size(bound))
    }

    fn channel(&self, address: &str) -> Result<Channel, Failed> {
        if let Some(channel) = self.state().channels.get(address) {
            return Ok(channel.clone());
        }
        let config = self.config();
        let refused = |text: String| Failed {
            address: address.to_owned(),
            error: v1::Error::new(ErrorCode::InvalidRequest, text),
            fate: crate::error::Fate::Answered,
        };
        // A broker's own address comes from its configuration, so it is as untrusted as the user's.
        check_address(address).map_err(|error| refused(error.to_string()))?;
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .and_then(|endpoint| endpoint.user_agent(config.user_agent.clone()))
            .map_err(|cause| refused(format!("{address} is not an address: {cause}")))?
            .connect_timeout(config.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .connect_lazy();
        self.state().channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each critical section leaves the state whole, so a panic elsewhere doesn't spoil it.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("bootstrap", &self.inner.bootstrap).finish_non_exhaustive()
    }
}

fn reason(failed: &Failed) -> String {
    if failed.error.message.is_empty() { failed.error.name.clone() } else { failed.error.message.clone() }
}

fn check_address(address: &str) -> Result<(), Error> {
    let wrong = || Error::Address { address: address.to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let bad = |c: char| c.is_whitespace() || matches!(c, '/' | '@' | '?' | '#');
    if host.is_empty() || host.contains(bad) || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_they_are_used() {
        for good in ["127.0.0.1:9190", "localhost:1", "[::1]:9190", "node-1.example:65535"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in ["", "localhost", ":9190", "localhost:", "localhost:70000", "http://a:1", "a b:1"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
