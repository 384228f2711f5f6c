//! Calls to the controllers: finds the leader among the configured addresses and follows its hints.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use semel_model::{ControllerEpoch, MetadataIndex};
use semel_proto::{
    internal::v1::controller_service_client::ControllerServiceClient,
    v1::{Error, ErrorCode},
};
use semel_service::grpc::ChannelConfig;
use tokio::{sync::watch, time::Instant};
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

/// What is known of who leads the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// The last one that answered as leader, or that another one named; `None` if nobody is known to lead.
    pub(crate) address: Option<String>,
    /// The newest epoch heard of. A controller that leads in an older one was deposed.
    pub(crate) epoch: ControllerEpoch,
}

/// Finds the leading controller and calls it. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct ControllerClient {
    inner: Arc<Inner>,
}

struct Inner {
    /// As configured: `host:port`.
    addresses: Vec<String>,
    lead: watch::Sender<Lead>,
    /// The newest metadata index known to be committed.
    committed: watch::Sender<MetadataIndex>,
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
                lead: watch::Sender::new(Lead { address: None, epoch: ControllerEpoch(0) }),
                committed: watch::Sender::new(MetadataIndex::ZERO),
                next: AtomicUsize::new(0),
                channels: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// A client of the controller to ask next: the known leader, else the next of the configured ones.
    pub(crate) fn candidate(&self) -> Result<(String, Client), Error> {
        let address = self.inner.lead.borrow().address.clone().unwrap_or_else(|| {
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
                let channel =
                    semel_service::grpc::channel(address, &ChannelConfig::default()).map_err(|cause| {
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
        let hint =
            status.metadata().get(LEADER_HINT).and_then(|value| value.to_str().ok()).map(str::to_owned);
        match hint {
            Some(hint) if !hint.is_empty() && hint != address => self.learned_leader(hint),
            _ => self.forget(address),
        }
    }

    /// Whoever is at `address` is not asked first again.
    pub(crate) fn forget(&self, address: &str) {
        self.inner.lead.send_if_modified(|lead| {
            let led = lead.address.as_deref() == Some(address);
            if led {
                lead.address = None;
            }
            led
        });
    }

    /// `address` answered as the leader, or was named as it.
    pub(crate) fn learned_leader(&self, address: String) {
        self.inner.lead.send_if_modified(|lead| {
            let news = lead.address.as_ref() != Some(&address);
            lead.address = Some(address);
            news
        });
    }

    /// `address` answered as the leader of `epoch`.
    ///
    /// Errors: STALE_CONTROLLER_EPOCH if a newer epoch is known: the answer must not be obeyed, and `address` is not
    /// asked first again.
    pub(crate) fn heard(&self, address: &str, epoch: ControllerEpoch) -> Result<(), Error> {
        let newest = self.inner.lead.borrow().epoch;
        if epoch < newest {
            self.forget(address);
            return Err(Error::new(
                ErrorCode::StaleControllerEpoch,
                format!("controller {address} leads in epoch {epoch}, {newest} is known"),
            ));
        }
        self.observe(epoch);
        self.learned_leader(address.to_owned());
        Ok(())
    }

    /// Something was committed in `epoch`: whoever leads in an older one was deposed.
    pub(crate) fn observe(&self, epoch: ControllerEpoch) {
        self.inner.lead.send_if_modified(|lead| {
            let news = epoch > lead.epoch;
            lead.epoch = lead.epoch.max(epoch);
            news
        });
    }

    /// A leader said how far the metadata is committed.
    pub(crate) fn committed(&self, index: MetadataIndex) {
        self.inner.committed.send_if_modified(|known| {
            let moved = *known < index;
            *known = (*known).max(index);
            moved
        });
    }

    /// How far the metadata is known to be committed, as it moves.
    pub(crate) fn follow_committed(&self) -> watch::Receiver<MetadataIndex> {
        self.inner.committed.subscribe()
    }

    /// Who leads, as it becomes known.
    pub(crate) fn lead(&self) -> watch::Receiver<Lead> {
        self.inner.lead.subscribe()
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
        self.call_as(within, repeat, call, |address, _| {
            self.learned_leader(address.to_owned());
            Ok(())
        })
        .await
    }

    /// As [`call`](Self::call), for an answer that tells its controller's epoch: one of an older epoch than is known
    /// is not an answer. The call is repeated then, so it must be one that may be.
    pub(crate) async fn call_in_epoch<T, F, Fut>(
        &self,
        within: Duration,
        call: F,
        epoch_of: impl Fn(&T) -> ControllerEpoch,
    ) -> Result<T, Error>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_as(within, Repeat::Safe, call, |address, answer| self.heard(address, epoch_of(answer)))
            .await
    }

    /// Asks what any controller can answer: that one does answer says nothing about who leads.
    pub(crate) async fn ask<T, F, Fut>(&self, within: Duration, call: F) -> Result<T, Error>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_as(within, Repeat::Safe, call, |_, _| Ok(())).await
    }

    async fn call_as<T, F, Fut>(
        &self,
        within: Duration,
        repeat: Repeat,
        call: F,
        accept: impl Fn(&str, &T) -> Result<(), Error>,
    ) -> Result<T, Error>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + within;
        let mut failures = 0_usize;
        loop {
            let (address, client) = self.candidate()?;
            let (error, again) = match tokio::time::timeout_at(deadline, call(client)).await {
                Ok(Ok(response)) => {
                    let answer = response.into_inner();
                    match accept(&address, &answer) {
                        Ok(()) => return Ok(answer),
                        Err(error) => (error, repeat == Repeat::Safe),
                    }
                }
                Ok(Err(status)) => {
                    self.learn(&address, &status);
                    let error = Error::from_status(&status);
                    let again = match error.error_code() {
                        ErrorCode::NotController => true,
                        ErrorCode::NetworkException => repeat == Repeat::Safe || was_not_sent(&status),
                        _ => return Err(error),
                    };
                    (error, again)
                }
                Err(_) => {
                    // It may be one that hangs: the next call asks another.
                    self.forget(&address);
                    return Err(Error::new(
                        ErrorCode::RequestTimedOut,
                        format!("controller {address} did not answer within {within:?}"),
                    ));
                }
            };
            if !again {
                return Err(error);
            }
            failures += 1;
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(Error::new(
                    ErrorCode::RequestTimedOut,
                    format!(
                        "no controller of {:?} led within {within:?}; last answer: {error}",
                        self.inner.addresses
                    ),
                ));
            }
            // A hint is followed at once; a whole round without a leader waits a little for the election.
            if failures.is_multiple_of(self.inner.addresses.len() + 1) || self.inner.addresses.len() == 1 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ControllerClient {
        ControllerClient::new(vec!["a:1".to_owned(), "b:1".to_owned()])
    }

    fn led_by(client: &ControllerClient) -> Option<String> {
        client.lead().borrow().address.clone()
    }

    #[test]
    fn a_deposed_controller_is_not_obeyed() {
        let client = client();
        assert!(client.heard("a:1", ControllerEpoch(3)).is_ok());
        assert_eq!(led_by(&client).as_deref(), Some("a:1"));
        // The metadata says that another one leads by now.
        client.observe(ControllerEpoch(5));
        let refused = client.heard("a:1", ControllerEpoch(3)).unwrap_err();
        assert_eq!(refused.error_code(), ErrorCode::StaleControllerEpoch);
        assert_eq!(led_by(&client), None);
        assert!(client.heard("b:1", ControllerEpoch(5)).is_ok());
        assert!(client.heard("a:1", ControllerEpoch(4)).is_err());
        assert_eq!(led_by(&client).as_deref(), Some("b:1"));
        client.observe(ControllerEpoch(1));
        assert_eq!(client.lead().borrow().epoch, ControllerEpoch(5));
    }

    #[test]
    fn hints_are_followed_and_failures_forgotten() {
        let client = client();
        let mut hint = Error::new(ErrorCode::NotController, "not me").into_status();
        hint.metadata_mut().insert(LEADER_HINT, "b:1".parse().unwrap());
        client.learn("a:1", &hint);
        assert_eq!(led_by(&client).as_deref(), Some("b:1"));
        // What another one failed at says nothing about the leader.
        client.learn("a:1", &Status::unavailable("gone"));
        assert_eq!(led_by(&client).as_deref(), Some("b:1"));
        client.learn("b:1", &Status::unavailable("gone"));
        assert_eq!(led_by(&client), None);
    }
}
