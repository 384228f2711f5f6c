//! Blocks of producer ids (KIP-730): each id is handed out once in the life of the cluster.

use semel_metadata::Record;
use semel_model::{BrokerEpoch, BrokerId, ProducerId};
use semel_rsm::{Ctx, Outcome};

use crate::{
    error::Error,
    machine::{Changes, Control, Reply},
};

/// A broker has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocateProducerIds {
    /// Who.
    pub broker: BrokerId,
    /// In which life.
    pub epoch: BrokerEpoch,
}

/// The ids `first..first + count` are the broker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIds {
    /// Inclusive.
    pub first: ProducerId,
    /// How many.
    pub count: i32,
}

impl Control {
    /// Errors: [`Error::StaleBrokerEpoch`]. A repeated request gets another block: the lost one stays unused.
    pub(crate) fn allocate_producer_ids(
        &self,
        ctx: &Ctx,
        request: &AllocateProducerIds,
    ) -> Result<Outcome<Self>, Error> {
        self.live_broker(request.broker, request.epoch)?;
        let first = self.image.next_producer_id();
        let count = self.config.producer_id_block;
        let next = first
            .0
            .checked_add(i64::from(count))
            .ok_or_else(|| Error::PolicyViolation("the cluster has run out of producer ids".to_owned()))?;
        let mut changes = Changes::on(self, ctx);
        changes.push(Record::ProducerIdBlock {
            broker: request.broker,
            epoch: request.epoch,
            next_producer_id: ProducerId(next),
        });
        Ok(changes.finish(false, Reply::ProducerIds(ProducerIds { first, count })))
    }
}
