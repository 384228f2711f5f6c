//! `ClusterService`: the cluster as gRPC clients need it, kept up to date.

use std::pin::Pin;

use semel_metadata::{Change, ClusterImage, changes_between};
use semel_proto::v1::{self, cluster_service_server::ClusterService};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{
    FrontDoor,
    admin::{describe_broker, describe_topic},
};

/// Answers for one broker.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) door: FrontDoor,
}

/// The whole picture.
fn full(image: &ClusterImage) -> v1::WatchClusterResponse {
    v1::WatchClusterResponse {
        index: image.index().get(),
        controller_epoch: image.controller_epoch().get(),
        full: true,
        brokers: image.brokers().map(describe_broker).collect(),
        topics: image.topics().map(|topic| describe_topic(image, topic)).collect(),
        ..Default::default()
    }
}

/// What changed, topics whole; `None` if nothing a client sees did.
fn difference(old: &ClusterImage, new: &ClusterImage) -> Option<v1::WatchClusterResponse> {
    let mut response = v1::WatchClusterResponse {
        index: new.index().get(),
        controller_epoch: new.controller_epoch().get(),
        ..Default::default()
    };
    let mut topics = std::collections::BTreeSet::new();
    for change in changes_between(old, new) {
        match change {
            Change::Broker(id) => response.brokers.extend(new.broker(id).map(describe_broker)),
            Change::BrokerRemoved(id) => response.removed_brokers.push(id.get()),
            Change::TopicRemoved { id, .. } => response.deleted_topic_ids.push(id.to_string()),
            Change::TopicCreated(id) => {
                topics.insert(id);
            }
            Change::Partition(partition) => {
                topics.insert(partition.topic);
            }
            Change::ClusterCreated
            | Change::TopicConfigs(_)
            | Change::BrokerConfigs(_)
            | Change::ClusterConfigs
            | Change::ProducerIds => {}
        }
    }
    response.topics =
        topics.into_iter().filter_map(|id| new.topic(id)).map(|topic| describe_topic(new, topic)).collect();
    let silent = response.brokers.is_empty()
        && response.removed_brokers.is_empty()
        && response.deleted_topic_ids.is_empty()
        && response.topics.is_empty();
    (!silent).then_some(response)
}

#[tonic::async_trait]
impl ClusterService for Cluster {
    type WatchClusterStream = Pin<Box<dyn Stream<Item = Result<v1::WatchClusterResponse, Status>> + Send>>;

    async fn watch_cluster(
        &self,
        request: Request<v1::WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        let after = request.into_inner().after_index;
        let node = self.door.node()?;
        let mut applied = node.metadata.follow();
        applied.mark_unchanged();
        let first = node.metadata.image();
        // A client that is at this very index needs nothing; any other starts from the whole picture, since a
        // broker keeps one image and no history.
        let opening = (after != first.index().get()).then(|| full(&first));
        // A slow client is never queued for: when it asks next it gets the difference up to that moment.
        let changes =
            futures::stream::unfold((applied, first, node), |(mut applied, mut seen, node)| async move {
                loop {
                    applied.changed().await.ok()?;
                    let image = node.metadata.image();
                    let difference = difference(&seen, &image);
                    seen = image;
                    if let Some(difference) = difference {
                        return Some((Ok(difference), (applied, seen, node)));
                    }
                }
            });
        let stream = futures::StreamExt::chain(futures::stream::iter(opening.map(Ok)), changes);
        Ok(Response::new(Box::pin(self.door.until_closed(stream))))
    }
}
