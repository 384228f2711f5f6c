//! Calls to the controllers: finds the leader among the configured addresses and follows its hints.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use semel_proto::{
    internal::v1::controller_service_client::ControllerServiceClient,
    v1::{Error, ErrorCode},
};
use semel_service::grpc::ChannelConfig;
use tokio::time::Instant;
use tonic::{Response, Status};

/// The trailer in which a controller that does not lead names the one that does.
const LEADER_HINT: &str = "semel-controller-leader";
/// Between two rounds over all controllers when none leads.
const RETRY_PAUSE: Duration = Duration::from_millis(40);
/// Metadata images and deltas may be large; everything else is small.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// The generated client over a traced channel.
pub(crate) type Client = ControllerServiceClient<semel_service::grpc::Channel>;

/// Whether a call may be sent again when nobody knows if the first one took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or doing it twice is doing it once.
    Safe,
    /// It is sent again only where it certainly did not take effect.
    OnlyIfNotSent,
}

/// Finds the leading controller and calls it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ControllerClient {
    inner: Arc<Inner>,
}

struct Inner {
    /// As configured: `host:port`.
    addresses: Vec<String>,
    /// Whom to ask first: the last one that answered as leader.
    leader: Mutex<Option<String>>,
    /// Where the next round over `addresses` starts.
    next: AtomicUsize,
    channels: Mutex<BTreeMap<String, semel_service::grpc::Channel>>,
}

impl ControllerClient {
    /// `addresses`: the controllers' gRPC addresses, `host:port`; at least one.
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                addresses,
                leader: Mutex::new(None),
                next: AtomicUsize::new(0),
                channels: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// A client of the controller to ask next: the known leader, else the next of the configured ones.
    pub(crate) fn candidate(&self) -> Result<(String, Client), Error> {
        let address = self.inner.leader.lock().clone().unwrap_or_else(|| {
            let at = self.inner.next.fetch_add(1, Ordering::Relaxed);
            self.inner.addresses[at % self.inner.addresses.len()].clone()
        });
        let client = self.client(&address)?;
        Ok((address, client))
    }

    fn client(&self, address: &str) -> Result<Client, Error> {
        let mut channels = self.inner.channels.lock();
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let channel = semel_service::grpc::channel(address, &ChannelConfig::default()).map_err(|cause| {
                    Error::new(
                        ErrorCode::InvalidRequest,
                        format!("controller address {address:?} is not host:port: {cause}"),
                    )
                })?;
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(ControllerServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Learns from a failed answer of `address` who leads; whoever failed is not asked first again.
    pub(crate) fn learn(&self, address: &str, status: &Status) {
        let hint = status.metadata().get(LEADER_HINT).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut leader = self.inner.leader.lock();
        match hint {
            Some(hint) if !hint.is_empty() && hint != address => *leader = Some(hint),
            _ if leader.as_deref() == Some(address) => *leader = None,
            _ => {}
        }
    }

    /// `address` answered as the leader.
    pub(crate) fn learned_leader(&self, address: String) {
        *self.inner.leader.lock() = Some(address);
    }

    /// Calls the leader until it answers or `within` is over.
    ///
    /// Errors: the controller's own error; `REQUEST_TIMED_OUT` when no leader answered in time;
    /// `NETWORK_EXCEPTION` when the fate of a call that must not be repeated is unknown.
    pub(crate) async fn call<T, F, Fut>(&self, within: Duration, repeat: Repeat, call: F) -> Result<T, Error>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + within;
        let mut failures = 0_usize;
        loop {
            let (address, client) = self.candidate()?;
            let status = match tokio::time::timeout_at(deadline, call(client)).await {
                Ok(Ok(response)) => {
                    self.learned_leader(address);
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => {
                    return Err(Error::new(
                        ErrorCode::RequestTimedOut,
                        format!("controller {address} did not answer within {within:?}"),
                    ));
                }
            };
            self.learn(&address, &status);
            let error = Error::from_status(&status);
            let again = match error.error_code() {
                ErrorCode::NotController => true,
                ErrorCode::NetworkException => repeat == Repeat::Safe || was_not_sent(&status),
                _ => return Err(error),
            };
            if !again {
                return Err(error);
            }
            failures += 1;
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(Error::new(
                    ErrorCode::RequestTimedOut,
                    format!("no controller of {:?} led within {within:?}; last answer: {error}", self.inner.addresses),
                ));
            }
            // A hint is followed at once; a whole round without a leader waits a little for the election.
            if failures % (self.inner.addresses.len() + 1) == 0 || self.inner.addresses.len() == 1 {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Whether the connection itself could not be made, so that the request certainly had no effect.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}
