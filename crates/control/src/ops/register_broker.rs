//! A broker starts (KIP-631): it gets the epoch that fences its earlier life, and stays fenced until it has
//! caught up with its own registration.
//!
//! A second process with the id of a broker that lives is refused, unless the first is known to have ended: its
//! heartbeat stream broke, or the new one has locked a log directory that the first had. So a broker that was killed
//! comes back at once, also at a controller that has just taken over and knows of no stream.

use semel_metadata::{self as metadata, DirectoryId, Record};
use semel_model::BrokerEpoch;
use semel_rsm::{Ctx, Outcome};

use crate::{
    election::reelect_replicas_of,
    error::Error,
    machine::{Changes, Control, Reply},
    ops::repeated,
};

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterBroker {
    /// Who, and where it can be reached.
    pub broker: metadata::RegisterBroker,
    /// The cluster the broker's directories belong to; `None` at its first start.
    pub cluster_id: Option<String>,
    /// Whether the heartbeat stream of the life that is registered now has broken: a broker that was killed
    /// need not wait for its own session to end. Filled in by the node, which alone knows.
    pub earlier_life_is_gone: bool,
}

/// The registration's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The epoch of this life.
    pub broker_epoch: BrokerEpoch,
    /// The cluster's.
    pub cluster_id: String,
}

/// In bytes: what a DNS name may have.
const NAME_LENGTH_MAX: usize = 255;

/// The most log directories a broker may have.
const DIRECTORIES_MAX: usize = 256;

impl Control {
    pub(crate) fn register_broker(&self, ctx: &Ctx, request: RegisterBroker) -> Result<Outcome<Self>, Error> {
        let id = request.broker.broker;
        let cluster_id = self
            .image
            .cluster_id()
            .ok_or_else(|| Error::NotController("the cluster is being created".to_owned()))?
            .to_owned();
        if let Some(theirs) = request.cluster_id.filter(|theirs| *theirs != cluster_id) {
            return Err(Error::InconsistentClusterId(format!(
                "broker {id} has directories of cluster {theirs}, this is cluster {cluster_id}"
            )));
        }
        check(&request.broker)?;
        let mut changes = Changes::on(self, ctx);
        if let Some(known) = self.image.broker(id) {
            if known.incarnation == request.broker.incarnation {
                // The answer was lost.
                let broker_epoch = known.epoch;
                return Ok(Outcome::read(Reply::Registered(Registered { broker_epoch, cluster_id })));
            }
            let has_ended =
                request.earlier_life_is_gone || shares_directory(&known.directories, &request.broker);
            if known.is_alive() && !has_ended {
                return Err(Error::DuplicateBrokerRegistration(format!(
                    "another broker with id {id} is alive at {}:{}",
                    known.kafka_host, known.kafka_port
                )));
            }
            if known.is_alive() {
                let (broker, epoch) = (id, known.epoch);
                changes.push(Record::BrokerFence { broker, epoch, fenced: true, shutting_down: false });
                reelect_replicas_of(&mut changes, id);
            }
        }
        let broker_epoch = BrokerEpoch(i64::try_from(ctx.position).unwrap_or(i64::MAX));
        changes.push(Record::RegisterBroker(request.broker));
        Ok(changes.finish(false, Reply::Registered(Registered { broker_epoch, cluster_id })))
    }
}

/// Whether the new process has locked a directory of the one that is registered: it could not, were that one alive.
fn shares_directory(known: &[DirectoryId], new: &metadata::RegisterBroker) -> bool {
    new.directories.iter().any(|id| known.contains(id))
}

fn check(broker: &metadata::RegisterBroker) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::InvalidRegistration(format!("broker {}: {what}", broker.broker)));
    if broker.broker.0 < 0 {
        return refuse("its id is negative");
    }
    let is_name = |text: &str| (1..=NAME_LENGTH_MAX).contains(&text.len());
    if !is_name(&broker.kafka_host) || broker.kafka_port == 0 {
        return refuse("it names no address for Kafka clients");
    }
    if !is_name(&broker.grpc_address) {
        return refuse("it names no gRPC address");
    }
    if broker.rack.as_ref().is_some_and(|rack| !is_name(rack)) {
        return refuse("its rack is empty or longer than 255 bytes");
    }
    if broker.directories.len() > DIRECTORIES_MAX {
        return refuse("it names more than 256 log directories");
    }
    // One that is no directory's would be shared by whoever has none.
    if broker.directories.iter().any(|id| id.is_reserved()) {
        return refuse("it names a reserved directory id");
    }
    if repeated(broker.directories.iter()).is_some() {
        return refuse("it names a log directory twice");
    }
    Ok(())
}
