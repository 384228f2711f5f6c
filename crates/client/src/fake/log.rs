//! The fake brokers' log service.

use semel_proto::v1::{
    self, ErrorCode,
    list_offsets_request::{Position, query::At},
    log_service_server::LogService,
    produce_request::Payload,
    produce_stream_response::Outcome,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Fault, Node};

/// Records in one answer, few so that tests see several.
const RECORDS_AT_ONCE: usize = 3;

enum Taken {
    Answer(Result<v1::ProduceResponse, v1::Error>),
    Broken,
}

impl Node {
    fn take(&self, request: &v1::ProduceRequest) -> Taken {
        let (topic, partition) = (request.topic.as_str(), request.partition);
        let mut world = self.shared.lock();
        world.produced += 1;
        if let Some(found) =
            world.topics.get_mut(topic).and_then(|topic| topic.partitions.get_mut(partition as usize))
            && let Some(Fault::Move(broker)) = found.faults.front().copied()
        {
            found.faults.pop_front();
            found.lead(broker);
        }
        let bound = world.topics.get(topic).map_or(usize::MAX, |topic| topic.batch_bytes_max);
        let found = match world.led_by(self.id, topic, partition) {
            Ok(found) => found,
            Err(error) => return Taken::Answer(Err(error)),
        };
        let fault = found.faults.pop_front();
        match fault {
            Some(Fault::Refuse(code)) => {
                return Taken::Answer(Err(v1::Error::new(code, "ordered by the test")));
            }
            Some(Fault::DropRequest) => return Taken::Broken,
            _ => {}
        }
        let Some(Payload::Batch(batch)) = &request.payload else {
            return Taken::Answer(Err(v1::Error::new(
                ErrorCode::InvalidRequest,
                "the fake takes batches only",
            )));
        };
        if batch.len() > bound {
            let text = format!("{} bytes are more than {bound}", batch.len());
            return Taken::Answer(Err(v1::Error::new(ErrorCode::MessageTooLarge, text)));
        }
        let appended = found.append(batch);
        let log_start_offset = found.log_start;
        drop(world);
        self.shared.bump();
        match fault {
            Some(Fault::DropAnswer) => Taken::Broken,
            Some(Fault::AppendAndRefuse(code)) => {
                Taken::Answer(Err(v1::Error::new(code, "appended, ordered by the test")))
            }
            _ => Taken::Answer(appended.map(|base_offset| v1::ProduceResponse {
                base_offset,
                append_time_ms: -1,
                log_start_offset,
            })),
        }
    }

    async fn serve(&self, request: v1::FetchRequest, to: mpsc::Sender<Result<v1::FetchResponse, Status>>) {
        let mut changed = self.shared.changed.subscribe();
        let mut next = request.offset;
        let mut until_break = self
            .shared
            .lock()
            .led_by(self.id, &request.topic, request.partition)
            .ok()
            .and_then(|found| found.fetch_breaks.pop_front());
        loop {
            changed.mark_unchanged();
            if self.up().is_err() {
                let _ = to.send(Err(Status::unavailable("the broker is down"))).await;
                return;
            }
            let answer = match self.shared.lock().led_by(self.id, &request.topic, request.partition) {
                Err(error) => Err(error.into_status()),
                Ok(found) if next < found.log_start || next > found.end() => {
                    let text = format!("the log has offsets {} to {}", found.log_start, found.end());
                    Err(v1::Error::new(ErrorCode::OffsetOutOfRange, text).into_status())
                }
                Ok(found) => {
                    let bound = until_break.unwrap_or(usize::MAX).min(RECORDS_AT_ONCE);
                    let end = request.end_offset.unwrap_or(i64::MAX);
                    let wanted =
                        found.records.iter().filter(|record| record.offset >= next && record.offset < end);
                    let records: Vec<v1::Record> = wanted.take(bound).cloned().collect();
                    Ok((records, found.end(), found.log_start))
                }
            };
            let (records, end, log_start_offset) = match answer {
                Ok(answer) => answer,
                Err(status) => {
                    let _ = to.send(Err(status)).await;
                    return;
                }
            };
            if let Some(last) = records.last() {
                next = last.offset + 1;
                until_break = until_break.map(|left| left - records.len());
                let answer = v1::FetchResponse {
                    records: Some(v1::Records { records }),
                    next_offset: next,
                    high_watermark: end,
                    last_stable_offset: end,
                    log_start_offset,
                    ..v1::FetchResponse::default()
                };
                if to.send(Ok(answer)).await.is_err() {
                    return;
                }
                if until_break != Some(0) {
                    continue;
                }
            }
            if until_break == Some(0) {
                let _ = to.send(Err(Status::unavailable("ordered by the test"))).await;
                return;
            }
            let reached = request.end_offset.is_some_and(|end| next >= end);
            if reached || (request.stop_at_end && next >= end) {
                return;
            }
            tokio::select! {
                // The sender lives in `self`.
                _ = changed.changed() => {}
                () = to.closed() => return,
            }
        }
    }
}

#[tonic::async_trait]
impl LogService for Node {
    async fn produce(
        &self,
        request: Request<v1::ProduceRequest>,
    ) -> Result<Response<v1::ProduceResponse>, Status> {
        self.up()?;
        match self.take(request.get_ref()) {
            Taken::Answer(answer) => answer.map(Response::new).map_err(v1::Error::into_status),
            Taken::Broken => Err(Status::unavailable("ordered by the test")),
        }
    }

    type ProduceStreamStream = ReceiverStream<Result<v1::ProduceStreamResponse, Status>>;

    async fn produce_stream(
        &self,
        request: Request<Streaming<v1::ProduceStreamRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        self.up()?;
        let (to, answers) = mpsc::channel(16);
        let node = self.clone();
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            let mut changed = node.shared.changed.subscribe();
            loop {
                let next = tokio::select! {
                    next = requests.message() => next,
                    _ = changed.changed() => {
                        if node.up().is_err() {
                            let _ = to.send(Err(Status::unavailable("the broker is down"))).await;
                            return;
                        }
                        continue;
                    }
                };
                let Ok(Some(v1::ProduceStreamRequest { number, request })) = next else { return };
                let answer = match node.take(&request.unwrap_or_default()) {
                    Taken::Answer(Ok(response)) => Ok(Outcome::Response(response)),
                    Taken::Answer(Err(error)) => Ok(Outcome::Error(error)),
                    Taken::Broken => Err(Status::unavailable("ordered by the test")),
                };
                let broken = answer.is_err();
                let answer =
                    answer.map(|outcome| v1::ProduceStreamResponse { number, outcome: Some(outcome) });
                if to.send(answer).await.is_err() || broken {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    type FetchStream = ReceiverStream<Result<v1::FetchResponse, Status>>;

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        self.up()?;
        self.shared.lock().fetches += 1;
        let (to, answers) = mpsc::channel(1);
        let node = self.clone();
        tokio::spawn(async move { node.serve(request.into_inner(), to).await });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let answers = request.queries.into_iter().map(|query| {
                let mut answer = v1::list_offsets_response::Answer {
                    topic: query.topic.clone(),
                    partition: query.partition,
                    offset: -1,
                    timestamp_ms: -1,
                    leader_epoch: 0,
                    error: None,
                };
                let found = match world.led_by(self.id, &query.topic, query.partition) {
                    Ok(found) => found,
                    Err(error) => {
                        answer.error = Some(error);
                        return answer;
                    }
                };
                answer.leader_epoch = found.leader_epoch;
                let time = |record: &&v1::Record| record.timestamp_ms.unwrap_or(-1);
                let record = match query.at {
                    Some(At::TimestampMs(then)) => found.records.iter().find(|record| time(record) >= then),
                    Some(At::Position(position)) if position == Position::MaxTimestamp as i32 => {
                        found.records.iter().max_by_key(time)
                    }
                    Some(At::Position(position)) if position == Position::Latest as i32 => {
                        answer.offset = found.end();
                        None
                    }
                    Some(At::Position(_)) | None => {
                        answer.offset = found.log_start;
                        None
                    }
                };
                if let Some(record) = record {
                    answer.offset = record.offset;
                    answer.timestamp_ms = record.timestamp_ms.unwrap_or(-1);
                }
                answer
            });
            Ok(v1::ListOffsetsResponse { answers: answers.collect() })
        })
    }

    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        self.call(|world| {
            world.next_producer_id += 1;
            Ok(v1::InitProducerResponse { producer_id: world.next_producer_id, producer_epoch: 0 })
        })
    }

    async fn delete_records(
        &self,
        request: Request<v1::DeleteRecordsRequest>,
    ) -> Result<Response<v1::DeleteRecordsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let found = world.led_by(self.id, &request.topic, request.partition)?;
            let before = if request.before_offset < 0 { found.end() } else { request.before_offset };
            if before > found.end() {
                let text = format!("offset {before} is past the high watermark {}", found.end());
                return Err(v1::Error::new(ErrorCode::OffsetOutOfRange, text));
            }
            found.log_start = found.log_start.max(before);
            let start = found.log_start;
            found.records.retain(|record| record.offset >= start);
            Ok(v1::DeleteRecordsResponse { log_start_offset: start })
        })
    }
}
