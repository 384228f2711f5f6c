//! Changes of topics and configurations, carried to the controller and awaited here.

use std::time::Duration;

use semel_model::MetadataIndex;
use semel_proto::internal::v1 as internal;

use crate::{controller_client::Repeat, failure::Failure, node::Node};

/// A client's time limit, within bounds: Kafka's admin clients send 30 s or their own.
pub(crate) fn within(timeout_ms: i32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(300);
    const SHORTEST: Duration = Duration::from_secs(1);
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)).clamp(SHORTEST, LONGEST)
}

/// After a change is committed, how long to wait for it to be in force on this broker too.
const APPLY_WAIT: Duration = Duration::from_secs(5);

impl Node {
    pub(crate) async fn create_topics(
        &self,
        request: internal::CreateTopicsRequest,
        within: Duration,
    ) -> Result<internal::CreateTopicsResponse, Failure> {
        let response = self
            .controller
            .call(within, Repeat::OnlyIfNotSent, |mut client| {
                let request = request.clone();
                async move { client.create_topics(request).await }
            })
            .await?;
        self.applied(response.metadata_index).await;
        Ok(response)
    }

    pub(crate) async fn delete_topics(
        &self,
        request: internal::DeleteTopicsRequest,
        within: Duration,
    ) -> Result<internal::DeleteTopicsResponse, Failure> {
        let response = self
            .controller
            .call(within, Repeat::OnlyIfNotSent, |mut client| {
                let request = request.clone();
                async move { client.delete_topics(request).await }
            })
            .await?;
        self.applied(response.metadata_index).await;
        Ok(response)
    }

    pub(crate) async fn create_partitions(
        &self,
        request: internal::CreatePartitionsRequest,
        within: Duration,
    ) -> Result<internal::CreatePartitionsResponse, Failure> {
        let response = self
            .controller
            .call(within, Repeat::OnlyIfNotSent, |mut client| {
                let request = request.clone();
                async move { client.create_partitions(request).await }
            })
            .await?;
        self.applied(response.metadata_index).await;
        Ok(response)
    }

    pub(crate) async fn alter_configs(
        &self,
        request: internal::AlterConfigsRequest,
        within: Duration,
    ) -> Result<internal::AlterConfigsResponse, Failure> {
        // Setting the same values again changes nothing, except for APPEND, which doesn't add what is there.
        let response = self
            .controller
            .call(within, Repeat::Safe, |mut client| {
                let request = request.clone();
                async move { client.alter_configs(request).await }
            })
            .await?;
        self.applied(response.metadata_index).await;
        Ok(response)
    }

    pub(crate) async fn describe_quorum(&self) -> Result<internal::DescribeQuorumResponse, Failure> {
        let response = self
            .controller
            .ask(Duration::from_secs(5), |mut client| async move {
                client.describe_quorum(internal::DescribeQuorumRequest {}).await
            })
            .await?;
        Ok(response)
    }

    async fn applied(&self, index: u64) {
        self.metadata.wait_for(MetadataIndex(index), APPLY_WAIT).await;
    }
}
