//! `LogService`: produce, fetch, offsets.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use semel_kafka_wire::ErrorCode;
use semel_model::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_proto::v1::{self, log_service_server::LogService};
use semel_record::{BatchBuilder, Codec, Compression, RecordHeader};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    FrontDoor, Working,
    admission::Tickets,
    fetch::{FETCH_BYTES, FETCH_BYTES_MAX, Reading},
};
use crate::{
    failure::Failure,
    ops::offsets::Position,
    partition::{AckResult, Acks, Isolation},
};

/// The acknowledgement's time limit where the caller gave none.
const PRODUCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests of one produce stream that wait for their acknowledgement; then the stream isn't read.
const STREAM_IN_FLIGHT: usize = 64;

type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers for one broker.
#[derive(Clone)]
pub(super) struct Log {
    pub(super) door: FrontDoor,
}

/// An append that is in the log and may still wait for its acknowledgement.
struct Pending {
    response: v1::ProduceResponse,
    ack: Option<crate::waiters::AckWait>,
    timeout: Duration,
    /// Closing the door waits for the acknowledgement.
    _working: Working,
}

impl Pending {
    async fn done(self) -> Result<v1::ProduceResponse, Failure> {
        if let Some(mut ack) = self.ack {
            match tokio::time::timeout(self.timeout, ack.done()).await {
                Ok(outcome) => AckResult::from(outcome).into_result()?,
                Err(_) => {
                    return Err(Failure::new(
                        ErrorCode::RequestTimedOut,
                        format!(
                            "appended at offset {}, not acknowledged within {:?}",
                            self.response.base_offset, self.timeout
                        ),
                    ));
                }
            }
        }
        Ok(self.response)
    }
}

impl Log {
    /// Appends at once; the order of calls is the order in the log.
    fn append(&self, request: v1::ProduceRequest) -> Result<Pending, Failure> {
        let acks = match request.acks() {
            v1::Acks::Unspecified | v1::Acks::All => Acks::All,
            v1::Acks::Leader => Acks::Leader,
        };
        let node = self.door.node()?;
        let partition = node.partitions.by_name(&request.topic, request.partition)?;
        if partition.topic.is_internal() {
            return Err(Failure::new(
                ErrorCode::InvalidTopicException,
                format!("clients can't write to the internal topic {}", partition.topic),
            ));
        }
        let now = node.clock.now();
        let timeout = u64::try_from(request.timeout_ms)
            .ok()
            .filter(|millis| *millis > 0)
            .map_or(PRODUCE_TIMEOUT, Duration::from_millis);
        let batch = build_batch(request, now)?;
        self.door.change(|working| {
            let appended = partition.append(batch, acks, now)?;
            Ok(Pending {
                response: v1::ProduceResponse {
                    base_offset: appended.base_offset.get(),
                    append_time_ms: appended.append_time.get(),
                    log_start_offset: appended.log_start_offset.get(),
                },
                ack: appended.ack,
                timeout,
                _working: working,
            })
        })
    }
}

/// The batch to append: as it came, or made of the records.
fn build_batch(request: v1::ProduceRequest, now: Timestamp) -> Result<Bytes, Failure> {
    use v1::produce_request::Payload;
    let codec = match request.compression() {
        v1::Compression::Unspecified | v1::Compression::None => Codec::None,
        v1::Compression::Gzip => Codec::Gzip,
        v1::Compression::Snappy => Codec::Snappy,
        v1::Compression::Lz4 => Codec::Lz4,
        v1::Compression::Zstd => Codec::Zstd,
    };
    let records = match request.payload {
        Some(Payload::Batch(batch)) => return Ok(batch),
        Some(Payload::Records(v1::Records { records })) if !records.is_empty() => records,
        Some(Payload::Records(_)) | None => {
            return Err(Failure::new(
                ErrorCode::InvalidRequest,
                "a produce request needs records or a batch",
            ));
        }
    };
    let mut builder = BatchBuilder::new().compression(Compression::of(codec));
    if let Some(idempotence) = request.idempotence {
        let epoch = i16::try_from(idempotence.producer_epoch).map_err(|_| {
            Failure::new(
                ErrorCode::InvalidRequest,
                format!("producer epoch {} is not 16 bits", idempotence.producer_epoch),
            )
        })?;
        builder = builder.producer(
            ProducerId(idempotence.producer_id),
            ProducerEpoch(epoch),
            Sequence(idempotence.base_sequence),
        );
    }
    for record in records {
        let headers: Vec<RecordHeader> = record
            .headers
            .into_iter()
            .map(|header| RecordHeader { key: header.key.into(), value: header.value })
            .collect();
        let timestamp = record.timestamp_ms.map_or(now, Timestamp);
        builder.push(timestamp, record.key.as_deref(), record.value.as_deref(), &headers);
    }
    Ok(builder.build()?.bytes)
}

#[tonic::async_trait]
impl LogService for Log {
    type ProduceStreamStream = MessageStream<v1::ProduceStreamResponse>;
    type FetchStream = MessageStream<v1::FetchResponse>;

    async fn produce(
        &self,
        request: Request<v1::ProduceRequest>,
    ) -> Result<Response<v1::ProduceResponse>, Status> {
        let ticket = request.extensions().get::<Tickets>().and_then(Tickets::take);
        let pending = self.append(request.into_inner())?;
        // The batch is in the log: its memory is free.
        drop(ticket);
        Ok(Response::new(pending.done().await?))
    }

    async fn produce_stream(
        &self,
        request: Request<Streaming<v1::ProduceStreamRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        let log = self.clone();
        let tickets = request.extensions().get::<Tickets>().cloned().unwrap_or_default();
        // Each item is appended when it is read, and waits for its acknowledgement beside the ones before it:
        // `buffered` keeps the order of the answers and stops reading at the bound.
        let appends = request.into_inner().map(move |item| -> Result<_, Status> {
            let v1::ProduceStreamRequest { number, request } = item?;
            let _ticket = tickets.take();
            let pending = request
                .ok_or_else(|| {
                    Failure::new(ErrorCode::InvalidRequest, "a produce stream item has no request")
                })
                .and_then(|request| log.append(request));
            Ok((number, pending))
        });
        // What was appended is still answered.
        let appends = self.door.until_closed(appends);
        let answers = futures::StreamExt::buffered(
            futures::StreamExt::map(appends, |item| async move {
                let (number, pending) = item?;
                let outcome = match pending {
                    Ok(pending) => pending.done().await,
                    Err(failure) => Err(failure),
                };
                use v1::produce_stream_response::Outcome;
                let outcome = match outcome {
                    Ok(response) => Outcome::Response(response),
                    Err(failure) => Outcome::Error(failure.to_grpc()),
                };
                Ok(v1::ProduceStreamResponse { number, outcome: Some(outcome) })
            }),
            STREAM_IN_FLIGHT,
        );
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let request = request.into_inner();
        let reading = Reading {
            partition: self.door.node()?.partitions.by_name(&request.topic, request.partition)?,
            offset: Offset(request.offset),
            end: request.end_offset.map_or(Offset(i64::MAX), Offset),
            isolation: isolation(request.isolation()),
            decoded: match request.encoding() {
                v1::fetch_request::Encoding::Unspecified | v1::fetch_request::Encoding::Records => true,
                v1::fetch_request::Encoding::Batches => false,
            },
            max_bytes: match request.max_bytes {
                ..=0 => FETCH_BYTES,
                asked => asked.unsigned_abs().min(FETCH_BYTES_MAX),
            },
            stop_at_end: request.stop_at_end,
            large_batches: self.door.inner.large_batches.clone(),
            closed: self.door.inner.closed.clone(),
        };
        // One message ahead of HTTP/2's own window, while the next is made.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(reading.run(sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        use v1::list_offsets_request::{Position as Asked, query::At};
        let request = request.into_inner();
        let isolation = isolation(request.isolation());
        let answers = request
            .queries
            .into_iter()
            .map(|query| {
                let position = match query.at {
                    Some(At::TimestampMs(millis)) => Ok(Position::At(Timestamp(millis))),
                    Some(At::Position(position)) => match Asked::try_from(position).unwrap_or_default() {
                        Asked::Earliest => Ok(Position::Earliest),
                        Asked::Latest => Ok(Position::Latest),
                        Asked::MaxTimestamp => Ok(Position::MaxTimestamp),
                        Asked::Unspecified => Err(Failure::new(ErrorCode::InvalidRequest, "name a position")),
                    },
                    None => Err(Failure::new(ErrorCode::InvalidRequest, "name a time or a position")),
                };
                let found = position.and_then(|position| {
                    self.door
                        .node()?
                        .partitions
                        .by_name(&query.topic, query.partition)?
                        .find_offset(position, isolation, None)
                });
                let mut answer = v1::list_offsets_response::Answer {
                    topic: query.topic,
                    partition: query.partition,
                    offset: -1,
                    timestamp_ms: -1,
                    leader_epoch: -1,
                    error: None,
                };
                match found {
                    Ok(Some(found)) => {
                        answer.offset = found.offset.get();
                        answer.timestamp_ms = found.timestamp.get();
                        answer.leader_epoch = found.leader_epoch.get();
                    }
                    Ok(None) => {}
                    Err(failure) => answer.error = Some(failure.to_grpc()),
                }
                answer
            })
            .collect();
        Ok(Response::new(v1::ListOffsetsResponse { answers }))
    }

    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        let id = self.door.node()?.producer_ids.next().await.map_err(Failure::from)?;
        Ok(Response::new(v1::InitProducerResponse {
            producer_id: id.get(),
            producer_epoch: i32::from(ProducerEpoch::FIRST.get()),
        }))
    }

    async fn delete_records(
        &self,
        request: Request<v1::DeleteRecordsRequest>,
    ) -> Result<Response<v1::DeleteRecordsResponse>, Status> {
        let request = request.into_inner();
        let partition = self.door.node()?.partitions.by_name(&request.topic, request.partition)?;
        let log_start_offset =
            self.door.change(|_| partition.delete_records(Offset(request.before_offset)))?;
        Ok(Response::new(v1::DeleteRecordsResponse { log_start_offset: log_start_offset.get() }))
    }
}

fn isolation(asked: v1::Isolation) -> Isolation {
    match asked {
        // As Kafka's consumers: uncommitted unless asked.
        v1::Isolation::Unspecified | v1::Isolation::ReadUncommitted => Isolation::ReadUncommitted,
        v1::Isolation::ReadCommitted => Isolation::ReadCommitted,
    }
}
