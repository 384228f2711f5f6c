//! One fetch stream: reads a partition, and sends batches as they lie in the log or the records in them.
//!
//! Between two messages a stream holds only its offset and, for a reader that keeps up, the one batch it stands in,
//! decompressed. A batch of tiny records that was a kilobyte on the wire can be a hundred megabytes: it leaves in
//! pieces, and a reader that stops reading costs nothing but the pieces that are on their way.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use semel_kafka_wire::ErrorCode;
use semel_model::{Offset, OffsetRange};
use semel_proto::v1;
use semel_record::{BatchError, DecodeLimits};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    failure::Failure,
    ops::visible::{Visible, VisibleRecords},
    partition::{Isolation, Partition, ReadSpec},
};

/// Bytes of log in one message where the caller gave no limit, and the most it may ask for.
pub(super) const FETCH_BYTES: u32 = 1 << 20;
pub(super) const FETCH_BYTES_MAX: u32 = 8 << 20;
/// Bytes of decoded records in one message, in memory: below the 4 MiB that gRPC clients take by default.
const RECORDS_BYTES: usize = 2 << 20;
/// Batches that are larger once decompressed are decoded by few streams at a time.
pub(super) const BATCH_BYTES: usize = 8 << 20;
/// How long a decompressed batch is kept for a reader that doesn't read. After that it is read and decompressed again
/// from where the reader is.
const KEEP: Duration = Duration::from_secs(1);

/// What a fetch stream asks of its partition, checked.
pub(super) struct Reading {
    pub(super) partition: Arc<Partition>,
    /// The next to be read, inclusive.
    pub(super) offset: Offset,
    /// Exclusive.
    pub(super) end: Offset,
    pub(super) isolation: Isolation,
    pub(super) decoded: bool,
    pub(super) max_bytes: u32,
    pub(super) stop_at_end: bool,
    /// One permit for each stream that may hold a batch over [`BATCH_BYTES`].
    pub(super) large_batches: Arc<Semaphore>,
    pub(super) closed: CancellationToken,
}

/// What was found at the reader's offset.
enum Found {
    /// To be sent as it is.
    Batches(v1::FetchResponse),
    Records(Box<Decoding>),
}

impl Reading {
    /// Sends until the end, the reader's leaving, an error, or the door's closing.
    pub(super) async fn run(mut self, to: mpsc::Sender<Result<v1::FetchResponse, Status>>) {
        let closed = self.closed.clone();
        let ended = tokio::select! {
            ended = self.send_all(&to) => ended,
            // Not as a stream that came to its end: the reader must know that there may be more.
            () = closed.cancelled() => Err(Failure::new(ErrorCode::BrokerNotAvailable, "the broker is stopping")),
        };
        drop(self);
        if let Err(failure) = ended {
            // A reader that has left doesn't want to know.
            let _ = to.send(Err(failure.into())).await;
        }
    }

    async fn send_all(
        &mut self,
        to: &mpsc::Sender<Result<v1::FetchResponse, Status>>,
    ) -> Result<(), Failure> {
        let mut decoding = None;
        while self.offset < self.end {
            // Waits for the reader before it reads on.
            let room = if decoding.is_none() {
                to.reserve().await
            } else if let Ok(room) = tokio::time::timeout(KEEP, to.reserve()).await {
                room
            } else {
                decoding = None;
                continue;
            };
            let Ok(room) = room else { return Ok(()) };
            let (message, rest) = match decoding.take() {
                Some(decoding) => self.piece(decoding).await?,
                None => {
                    // Registered before the read: a change after it is not missed.
                    let changed = Arc::new(Notify::new());
                    self.partition.waiters().on_change(&changed);
                    match self.read()? {
                        Some(Found::Batches(message)) => (message, None),
                        Some(Found::Records(decoding)) => self.piece(decoding).await?,
                        None if self.stop_at_end => return Ok(()),
                        None => {
                            drop(room);
                            tokio::select! {
                                () = changed.notified() => continue,
                                () = to.closed() => return Ok(()),
                            }
                        }
                    }
                }
            };
            self.offset = Offset(message.next_offset);
            decoding = rest;
            room.send(Ok(message));
        }
        Ok(())
    }

    /// What is at the offset; `None` if there is nothing to read yet.
    fn read(&self) -> Result<Option<Found>, Failure> {
        let read = self.partition.read(&ReadSpec {
            offset: self.offset,
            max_bytes: self.max_bytes,
            isolation: self.isolation,
            at_least_one: true,
            leader_epoch: None,
        })?;
        let Some(slice) = read.slice else { return Ok(None) };
        let bytes = slice.read().map_err(|error| crate::partition::storage_failure(&error))?;
        let next = semel_record::BatchHeaders::new(&bytes)
            .filter_map(Result::ok)
            .last()
            .map_or(self.offset, |(_, header)| header.next_offset());
        let template = v1::FetchResponse {
            next_offset: next.get(),
            high_watermark: read.high_watermark.get(),
            last_stable_offset: read.last_stable_offset.get(),
            log_start_offset: read.log_start_offset.get(),
            ..Default::default()
        };
        if self.decoded {
            let range = OffsetRange { start: self.offset, end: self.end };
            let limits = DecodeLimits { decompressed_bytes_max: BATCH_BYTES };
            let records = VisibleRecords::new(bytes, &read.aborted, range, limits);
            let decoding = Decoding { records, template, held: None, failed: None, large: None };
            return Ok(Some(Found::Records(Box::new(decoding))));
        }
        let aborted = read
            .aborted
            .iter()
            .map(|one| v1::AbortedTransaction {
                producer_id: one.producer_id.get(),
                first_offset: one.first_offset.get(),
            })
            .collect();
        Ok(Some(Found::Batches(v1::FetchResponse { batches: bytes, aborted, ..template })))
    }

    /// The next message of what is being decoded, and the rest of it if there is one.
    async fn piece(
        &self,
        mut decoding: Box<Decoding>,
    ) -> Result<(v1::FetchResponse, Option<Box<Decoding>>), Failure> {
        loop {
            // Decompression is bounded in memory, not in time: off the network's threads.
            let filled = tokio::task::spawn_blocking(move || {
                let piece = decoding.piece();
                (decoding, piece)
            });
            let (back, piece) = filled
                .await
                .map_err(|error| Failure::new(ErrorCode::UnknownServerError, error.to_string()))?;
            decoding = back;
            match piece {
                Ok(Piece { message, last }) => return Ok((message, (!last).then_some(decoding))),
                Err(BatchError::DecompressedTooLarge { .. }) if decoding.large.is_none() => {
                    let permit = self.large_batches.clone().acquire_owned().await;
                    let permit = permit
                        .map_err(|error| Failure::new(ErrorCode::UnknownServerError, error.to_string()))?;
                    decoding.large = Some(permit);
                    decoding.records.raise(DecodeLimits::default());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Batches on their way to a reader as records.
struct Decoding {
    records: VisibleRecords,
    /// The message without records; its next offset is where these batches end.
    template: v1::FetchResponse,
    /// Did not fit the last message.
    held: Option<Visible>,
    /// What ended the records, to be told after those before it were sent.
    failed: Option<BatchError>,
    large: Option<OwnedSemaphorePermit>,
}

/// A message, and whether it is the last of its batches.
struct Piece {
    message: v1::FetchResponse,
    last: bool,
}

impl Decoding {
    /// The next message, of bounded size. The last one moves the reader on even if it sees nothing.
    fn piece(&mut self) -> Result<Piece, BatchError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut records: Vec<v1::Record> = Vec::new();
        let mut size = 0;
        let next_offset = loop {
            let visible = match self.held.take().map(Ok).or_else(|| self.records.next()) {
                Some(Ok(visible)) => visible,
                Some(Err(error)) => match records.last() {
                    None => return Err(error),
                    Some(last) => {
                        self.failed = Some(error);
                        break last.offset + 1;
                    }
                },
                None => {
                    let message =
                        v1::FetchResponse { records: Some(v1::Records { records }), ..self.template.clone() };
                    return Ok(Piece { message, last: true });
                }
            };
            let bytes = size_in_memory(&visible);
            if size + bytes > RECORDS_BYTES && !records.is_empty() {
                let offset = visible.offset.get();
                self.held = Some(visible);
                break offset;
            }
            size += bytes;
            records.push(record(visible));
        };
        let message = v1::FetchResponse {
            records: Some(v1::Records { records }),
            next_offset,
            ..self.template.clone()
        };
        Ok(Piece { message, last: false })
    }
}

/// What a record takes as a part of a message, which for a tiny one is much more than on the wire.
fn size_in_memory(visible: &Visible) -> usize {
    let record = &visible.record;
    let headers: usize = record
        .headers
        .iter()
        .map(|header| {
            size_of::<v1::Header>() + header.key.len() + header.value.as_ref().map_or(0, Bytes::len)
        })
        .sum();
    size_of::<v1::Record>()
        + record.key.as_ref().map_or(0, Bytes::len)
        + record.value.as_ref().map_or(0, Bytes::len)
        + headers
}

fn record(visible: Visible) -> v1::Record {
    let Visible { offset, record } = visible;
    let headers = record
        .headers
        .into_iter()
        .map(|header| v1::Header {
            key: String::from_utf8_lossy(&header.key).into_owned(),
            value: header.value,
        })
        .collect();
    v1::Record {
        key: record.key,
        value: record.value,
        headers,
        timestamp_ms: Some(record.timestamp.get()),
        offset: offset.get(),
    }
}

#[cfg(test)]
mod tests {
    use semel_model::{LeaderEpoch, Timestamp};
    use semel_record::{BatchBuilder, Codec, Compression};

    use super::*;

    fn decoding(bytes: Bytes, next: i64, start: i64) -> Decoding {
        let range = OffsetRange { start: Offset(start), end: Offset(i64::MAX) };
        Decoding {
            records: VisibleRecords::new(bytes, &[], range, DecodeLimits::default()),
            template: v1::FetchResponse { next_offset: next, high_watermark: next, ..Default::default() },
            held: None,
            failed: None,
            large: None,
        }
    }

    fn tiny_records(count: i64) -> Bytes {
        let mut builder =
            BatchBuilder::new().compression(Compression::of(Codec::Zstd)).stamp(Offset(0), LeaderEpoch(0));
        for _ in 0..count {
            builder.push(Timestamp(1), None, None, &[]);
        }
        builder.build().unwrap().bytes
    }

    #[test]
    fn a_bomb_of_tiny_records_leaves_in_pieces_that_join() {
        let count = 100_000;
        let batch = tiny_records(count);
        let mut decoding = decoding(batch.clone(), count, 0);
        let (mut next, mut pieces) = (0, 0);
        loop {
            let Piece { message, last } = decoding.piece().unwrap();
            let records = message.records.unwrap().records;
            assert!(records.len() * size_of::<v1::Record>() <= RECORDS_BYTES);
            for record in records {
                assert_eq!(record.offset, next);
                next += 1;
            }
            assert_eq!(message.next_offset, next);
            pieces += 1;
            if last {
                break;
            }
        }
        assert_eq!(next, count);
        assert!(pieces > 3, "{pieces}");
        // Whoever was let go in the middle goes on from the same offset.
        let again = super::tests::decoding(batch, count, 70_000).piece().unwrap().message.records.unwrap();
        assert_eq!(again.records[0].offset, 70_000);
    }

    #[test]
    fn records_before_a_bad_batch_are_sent_and_then_the_error() {
        let mut bytes = tiny_records(3).to_vec();
        let mut bad = {
            let mut builder = BatchBuilder::new().stamp(Offset(3), LeaderEpoch(0));
            builder.push(Timestamp(1), None, Some(b"value"), &[]);
            builder.build().unwrap().bytes.to_vec()
        };
        let end = bad.len();
        bad[end - 8..].fill(0xff);
        bytes.extend(bad);
        let mut decoding = decoding(bytes.into(), 4, 0);
        let Piece { message, last } = decoding.piece().unwrap();
        assert_eq!((message.next_offset, last), (3, false));
        assert_eq!(message.records.unwrap().records.len(), 3);
        assert!(decoding.piece().is_err());
    }

    #[test]
    fn a_reader_that_sees_nothing_moves_on() {
        let Piece { message, last } = decoding(tiny_records(5), 5, 5).piece().unwrap();
        assert!(last && message.records.unwrap().records.is_empty());
        assert_eq!(message.next_offset, 5);
    }
}
