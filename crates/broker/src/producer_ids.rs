//! Producer ids, handed out from blocks that the controller leases to this broker (KIP-730).

use std::{ops::Range, time::Duration};

use semel_model::{BrokerId, ProducerId};
use semel_proto::{internal::v1::AllocateProducerIdsRequest, v1::Error};
use tokio::sync::Mutex;

use crate::{
    controller_client::{ControllerClient, Repeat},
    lifecycle::Registration,
};

/// How long a client waits for a new block at the most.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The ids this broker may still give. Each is given once, ever: a block lost in a crash is never used.
pub(crate) struct ProducerIds {
    broker: BrokerId,
    controller: ControllerClient,
    registration: Registration,
    left: Mutex<Range<i64>>,
}

impl ProducerIds {
    pub(crate) fn new(broker: BrokerId, controller: ControllerClient, registration: Registration) -> Self {
        Self { broker, controller, registration, left: Mutex::new(0..0) }
    }

    /// The next id. Waits for the controller only when the block is used up.
    pub(crate) async fn next(&self) -> Result<ProducerId, Error> {
        // An async mutex: one caller fetches the block, the others wait for it instead of fetching their own.
        let mut left = self.left.lock().await;
        if left.is_empty() {
            let request = AllocateProducerIdsRequest {
                broker_id: self.broker.get(),
                broker_epoch: self.registration.epoch().get(),
            };
            // A repeated allocation only wastes a block.
            let block = self
                .controller
                .call(BLOCK_TIMEOUT, Repeat::Safe, |mut client| async move {
                    client.allocate_producer_ids(request).await
                })
                .await?;
            *left = block.first_producer_id..block.first_producer_id + i64::from(block.count);
        }
        let id = left.start;
        left.start += 1;
        Ok(ProducerId(id))
    }
}
