//! Looking offsets up, and moving a log's start.

use semel_model::{LeaderEpoch, Offset, PartitionIndex, Timestamp};
use semel_proto::v1::{self, ErrorCode, list_offsets_request as proto};

use crate::{
    Cluster, Error, Isolation,
    error::{Failed, Safety},
};

/// What to look for in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The log's start.
    Earliest,
    /// The first offset that can't be read yet: the high watermark, or the last stable offset.
    Latest,
    /// The first record of this time or later.
    Time(Timestamp),
    /// The record of the greatest time (KIP-734).
    MaxTimestamp,
}

/// One look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetQuery {
    /// The topic's name.
    pub topic: String,
    /// Its partition.
    pub partition: PartitionIndex,
    /// What to look for.
    pub at: At,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// `None`: no record is that late.
    pub offset: Option<Offset>,
    /// The found record's time, where one was looked for.
    pub timestamp: Option<Timestamp>,
    /// Under which the leader answered.
    pub leader_epoch: LeaderEpoch,
}

impl Cluster {
    /// Looks one offset up at the partition's leader.
    pub async fn find_offset(&self, query: &OffsetQuery, isolation: Isolation) -> Result<FoundOffset, Error> {
        let (topic, partition) = (query.topic.as_str(), query.partition);
        let request = v1::ListOffsetsRequest {
            queries: vec![proto::Query {
                topic: topic.to_owned(),
                partition: partition.get(),
                at: Some(query.at.to_proto()),
            }],
            isolation: isolation.to_proto().into(),
        };
        let request = &request;
        let doing = format!("look up an offset of {topic}-{partition}");
        let answer = self
            .at_leader(&doing, topic, partition, |address| async move {
                let mut client = self.log_client(&address)?;
                let response = self.settle(&address, client.list_offsets(request.clone())).await?;
                let Some(answer) = response.answers.into_iter().next() else {
                    let error =
                        v1::Error::new(ErrorCode::UnknownServerError, "the broker answered without a result");
                    return Err(Failed::answered(&address, error));
                };
                match answer.error.clone() {
                    Some(error) => Err(Failed::answered(&address, error)),
                    None => Ok(answer),
                }
            })
            .await?;
        Ok(FoundOffset {
            offset: (answer.offset >= 0).then_some(Offset(answer.offset)),
            timestamp: (answer.timestamp_ms >= 0).then_some(Timestamp(answer.timestamp_ms)),
            leader_epoch: LeaderEpoch(answer.leader_epoch),
        })
    }

    /// Drops the records below `before` (exclusive; `None`: all that can be read) and returns the new log start.
    pub async fn delete_records(
        &self,
        topic: &str,
        partition: PartitionIndex,
        before: Option<Offset>,
    ) -> Result<Offset, Error> {
        let doing = format!("delete records of {topic}-{partition}");
        let request = v1::DeleteRecordsRequest {
            topic: topic.to_owned(),
            partition: partition.get(),
            before_offset: before.map_or(-1, Offset::get),
        };
        let request = &request;
        self.at_leader(&doing, topic, partition, |address| async move {
            let mut client = self.log_client(&address)?;
            let response = self.settle(&address, client.delete_records(request.clone())).await?;
            Ok(Offset(response.log_start_offset))
        })
        .await
    }

    /// Runs a repeatable call at the partition's leader, looking the leader up again after each failure.
    pub(crate) async fn at_leader<T, F, Fut>(
        &self,
        doing: &str,
        topic: &str,
        partition: PartitionIndex,
        call: F,
    ) -> Result<T, Error>
    where
        F: Fn(String) -> Fut,
        Fut: Future<Output = Result<T, Failed>>,
    {
        let (stale, call) = (&std::sync::atomic::AtomicU64::new(0), &call);
        let ordering = std::sync::atomic::Ordering::Relaxed;
        self.retry(doing, Safety::Repeatable, || async move {
            let route = self.route(topic, partition, stale.load(ordering)).await?;
            let result = call(route.address).await;
            if result.is_err() {
                stale.store(route.version, ordering);
            }
            result
        })
        .await
    }
}

impl At {
    fn to_proto(self) -> proto::query::At {
        match self {
            Self::Earliest => proto::query::At::Position(proto::Position::Earliest.into()),
            Self::Latest => proto::query::At::Position(proto::Position::Latest.into()),
            Self::MaxTimestamp => proto::query::At::Position(proto::Position::MaxTimestamp.into()),
            Self::Time(time) => proto::query::At::TimestampMs(time.get()),
        }
    }
}
