//! The first record of a cluster.

use semel_metadata::Record;
use semel_rsm::{Ctx, Outcome};

use crate::{
    machine::{Changes, Control, Reply},
    random::Random,
};

/// Asked by a new leader of itself: gives the cluster its id, unless it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateCluster {
    /// The id the operator chose; `None` draws one.
    pub cluster_id: Option<String>,
}

impl Control {
    pub(crate) fn create_cluster(&self, ctx: &Ctx, request: &CreateCluster) -> Outcome<Self> {
        let mut changes = Changes::on(self, ctx);
        if self.image.cluster_id().is_none() {
            let cluster_id = match &request.cluster_id {
                Some(chosen) => chosen.clone(),
                None => Random::new(ctx.entropy).id().to_string(),
            };
            changes.push(Record::ClusterCreated { cluster_id: cluster_id.into() });
        }
        changes.finish(false, Reply::Done)
    }
}
