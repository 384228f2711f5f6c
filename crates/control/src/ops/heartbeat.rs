//! A broker lives, stops, or has fallen silent.

use semel_metadata::Record;
use semel_model::{BrokerEpoch, BrokerId, MetadataIndex};
use semel_rsm::{Ctx, Outcome};

use crate::{
    election::reelect_replicas_of,
    error::Error,
    machine::{Changes, Control, Reply},
};

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub broker: BrokerId,
    /// In which life.
    pub epoch: BrokerEpoch,
    /// What it has applied: it is unfenced once that includes its registration.
    pub metadata_index: MetadataIndex,
    /// It must not lead or be in sync.
    pub want_fence: bool,
    /// It is about to stop and wants its leaderships moved first.
    pub want_shutdown: bool,
}

/// The controller's view of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// Whether it may lead and be in sync.
    pub fenced: bool,
    /// Everything that can be moved has been: it may stop.
    pub may_shutdown: bool,
}

/// Asked by the node itself when a broker's session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Who.
    pub broker: BrokerId,
    /// In which life: a broker that has registered again meanwhile is left alone.
    pub epoch: BrokerEpoch,
}

impl Control {
    /// Errors: [`Error::StaleBrokerEpoch`] if the broker has registered again or never did.
    pub(crate) fn heartbeat(&self, ctx: &Ctx, request: &Heartbeat) -> Result<Outcome<Self>, Error> {
        let known = self.live_broker(request.broker, request.epoch)?;
        let mut changes = Changes::on(self, ctx);
        let caught_up = i64::try_from(request.metadata_index.0).is_ok_and(|index| index >= known.epoch.0);
        let (fenced, shutting_down) = if request.want_fence {
            (true, request.want_shutdown)
        } else if request.want_shutdown {
            // One that never was unfenced has nothing to hand over.
            (known.fenced, true)
        } else if known.shutting_down {
            // Once begun it ends: the broker says so in each heartbeat, and this one was late.
            (known.fenced, true)
        } else {
            (known.fenced && !caught_up, false)
        };
        if (fenced, shutting_down) != (known.fenced, known.shutting_down) {
            let (broker, epoch) = (request.broker, request.epoch);
            changes.push(Record::BrokerFence { broker, epoch, fenced, shutting_down });
            reelect_replicas_of(&mut changes, request.broker);
        }
        let answer = HeartbeatAnswer { fenced, may_shutdown: request.want_shutdown && shutting_down };
        Ok(changes.finish(false, Reply::Heartbeat(answer)))
    }

    pub(crate) fn fence(&self, ctx: &Ctx, request: &Fence) -> Outcome<Self> {
        let mut changes = Changes::on(self, ctx);
        let (broker, epoch) = (request.broker, request.epoch);
        if self.image.broker(broker).is_some_and(|known| known.epoch == epoch && known.is_alive()) {
            changes.push(Record::BrokerFence { broker, epoch, fenced: true, shutting_down: false });
            reelect_replicas_of(&mut changes, broker);
        }
        changes.finish(false, Reply::Done)
    }
}
