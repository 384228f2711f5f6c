//! Producer ids, handed out from blocks that the controller leases to this broker (KIP-730).

use std::{ops::Range, time::Duration};

use semel_kafka_wire::ErrorCode;
use semel_model::{BrokerId, ProducerId};
use semel_proto::{
    internal::v1::{AllocateProducerIdsRequest, AllocateProducerIdsResponse},
    v1::Error,
};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    controller_client::{ControllerClient, Repeat},
    failure::Failure,
    lifecycle::Registration,
};

/// How long a client waits for an id at the most, whoever fetches the block.
const WITHIN: Duration = Duration::from_secs(10);

/// Why there is no producer id just now. Each is mended by asking again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProducerIdError {
    /// Others wait for the same block.
    #[error("no block of producer ids came in time")]
    TimedOut,
    /// The controller gave none.
    #[error("cannot get a block of producer ids")]
    Refused(#[source] Error),
    /// What the controller gave is no block.
    #[error("a block of {count} producer ids from {first} on makes no sense")]
    Malformed {
        /// The first id.
        first: i64,
        /// How many.
        count: i32,
    },
}

/// As Kafka's brokers answer InitProducerId while they have no block: a code that every client retries on, where the
/// controller's own (a stale broker epoch, a time-out) would end a producer.
impl From<ProducerIdError> for Failure {
    fn from(error: ProducerIdError) -> Self {
        Self::new(ErrorCode::CoordinatorLoadInProgress, crate::failure::chain(&error))
    }
}

/// The ids this broker may still give. Each is given once, ever: a block lost in a crash is never used.
pub(crate) struct ProducerIds {
    broker: BrokerId,
    controller: ControllerClient,
    registration: Registration,
    within: Duration,
    left: Mutex<Range<i64>>,
}

impl ProducerIds {
    pub(crate) fn new(broker: BrokerId, controller: ControllerClient, registration: Registration) -> Self {
        Self { broker, controller, registration, within: WITHIN, left: Mutex::new(0..0) }
    }

    /// The next id. Waits for the controller only when the block is used up.
    ///
    /// Errors: [`ProducerIdError`], within [`WITHIN`].
    pub(crate) async fn next(&self) -> Result<ProducerId, ProducerIdError> {
        let deadline = Instant::now() + self.within;
        // An async mutex: one caller fetches the block, the others wait for it instead of fetching their own.
        let locked = tokio::time::timeout_at(deadline, self.left.lock()).await;
        let mut left = locked.map_err(|_| ProducerIdError::TimedOut)?;
        if left.is_empty() {
            let request = AllocateProducerIdsRequest {
                broker_id: self.broker.get(),
                broker_epoch: self.registration.epoch().get(),
            };
            // A repeated allocation only wastes a block.
            let block = self
                .controller
                .call(
                    deadline.saturating_duration_since(Instant::now()),
                    Repeat::Safe,
                    |mut client| async move { client.allocate_producer_ids(request).await },
                )
                .await
                .map_err(ProducerIdError::Refused)?;
            *left = ids_of(&block)?;
        }
        let id = left.start;
        left.start += 1;
        Ok(ProducerId(id))
    }
}

/// The ids of a block; at least one.
fn ids_of(block: &AllocateProducerIdsResponse) -> Result<Range<i64>, ProducerIdError> {
    let (first, count) = (block.first_producer_id, block.count);
    match first.checked_add(i64::from(count)) {
        Some(end) if first >= 0 && count > 0 => Ok(first..end),
        _ => Err(ProducerIdError::Malformed { first, count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_real_block_is_taken() {
        let block =
            |first_producer_id, count| ids_of(&AllocateProducerIdsResponse { first_producer_id, count }).ok();
        assert_eq!(block(1000, 3), Some(1000..1003));
        assert_eq!(block(0, 1), Some(0..1));
        for (first, count) in [(0, 0), (5, -1), (-1, 10), (i64::MAX, 1)] {
            assert_eq!(block(first, count), None, "{first} {count}");
        }
    }

    #[tokio::test]
    async fn without_a_controller_clients_are_told_to_come_back_in_time() {
        // Nothing listens on port 1.
        let controller = ControllerClient::new(vec!["127.0.0.1:1".to_owned()]);
        let mut ids = ProducerIds::new(BrokerId(1), controller, Registration::none());
        ids.within = Duration::from_millis(100);
        let both = async { tokio::join!(ids.next(), ids.next()) };
        let (one, other) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        for error in [one.unwrap_err(), other.unwrap_err()] {
            assert_eq!(Failure::from(error).code, ErrorCode::CoordinatorLoadInProgress);
        }
    }
}
