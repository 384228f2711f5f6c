//! What a leader checks of a batch that came from an untrusted hand.

use bytes::Bytes;
use semel_model::{ProducerEpoch, Sequence, Timestamp};

use crate::{
    Batch, BatchError, BatchHeader, Codec, DecodeLimits, RecordViews, TimestampType, header::Attributes,
};

/// What a topic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the whole batch as it came, compressed, overhead included (`max.message.bytes`), inclusive.
    pub message_bytes_max: usize,
    /// The earliest timestamp taken, inclusive: now minus `message.timestamp.before.max.ms`.
    pub timestamp_min: Timestamp,
    /// The latest timestamp taken, inclusive: now plus `message.timestamp.after.max.ms`.
    pub timestamp_max: Timestamp,
    /// Whether each record needs a key, as compaction does. A compressed batch is then decompressed, within
    /// `decode`.
    pub keys_required: bool,
    /// For `keys_required`.
    pub decode: DecodeLimits,
}

impl Default for Limits {
    /// Kafka's default size (1 MiB and the overhead), any timestamp, any key.
    fn default() -> Self {
        Self {
            message_bytes_max: (1 << 20) + crate::LOG_OVERHEAD,
            timestamp_min: Timestamp(i64::MIN),
            timestamp_max: Timestamp(i64::MAX),
            keys_required: false,
            decode: DecodeLimits::default(),
        }
    }
}

/// Checks what a producer sent for one partition: exactly one well-formed batch that this topic takes.
///
/// Costs the header, one pass for the CRC and, if the batch is not compressed, one walk over the records without
/// allocation. Compressed records are not looked at, but for `keys_required`; every reader of them has to bound
/// and check for itself. The base offset is not looked at: the leader stamps its own. A max timestamp that is not
/// the records' is corrected, since time indexes are built on it.
///
/// Errors: any [`BatchError`] but [`BatchError::NoRecords`], [`BatchError::Compress`] and
/// [`BatchError::MalformedControlRecord`].
pub fn validate_produced(records: Bytes, limits: &Limits) -> Result<Batch, BatchError> {
    if records.is_empty() {
        return Err(BatchError::NotOneBatch { extra_bytes: 0 });
    }
    let header = BatchHeader::parse(&records)?;
    // First, so that nothing is read of what is too large anyway.
    if header.size_in_bytes() > limits.message_bytes_max {
        return Err(BatchError::TooLarge { size: header.size_in_bytes(), max: limits.message_bytes_max });
    }
    let batch = Batch::parse(records)?;
    batch.verify_crc()?;
    let codec = check_attributes(header.attributes)?;
    check_counts(&header)?;
    check_producer(&header)?;
    check_timestamps(&header, limits)?;
    if codec == Codec::None {
        let max_timestamp = walk(RecordViews::new(&header, &batch.bytes[BatchHeader::SIZE..]), limits)?;
        if max_timestamp != header.max_timestamp {
            return Ok(batch.with_max_timestamp(max_timestamp));
        }
    } else if limits.keys_required {
        walk(batch.payload(&limits.decode)?.views(), limits)?;
    }
    Ok(batch)
}

fn check_attributes(attributes: Attributes) -> Result<Codec, BatchError> {
    let codec = attributes.codec()?;
    if attributes.is_control() {
        return Err(BatchError::ControlBatch);
    }
    // With the delete horizon bit a client could tell the cleaner when to drop tombstones.
    if attributes.unused_bits() != 0 || attributes.has_delete_horizon() {
        return Err(BatchError::ReservedAttributes { attributes: attributes.0 });
    }
    Ok(codec)
}

fn check_counts(header: &BatchHeader) -> Result<(), BatchError> {
    // The header's own check left `count ≤ delta + 1`; only compaction makes it less.
    if header.record_count < 1 || header.record_count - 1 != header.last_offset_delta {
        return Err(BatchError::BadCount {
            record_count: header.record_count,
            last_offset_delta: header.last_offset_delta,
        });
    }
    Ok(())
}

fn check_producer(header: &BatchHeader) -> Result<(), BatchError> {
    let consistent = if header.is_idempotent() {
        header.producer_epoch >= ProducerEpoch::FIRST && header.base_sequence >= Sequence::FIRST
    } else {
        header.producer_id.0 == -1
            && header.producer_epoch == ProducerEpoch::NONE
            && header.base_sequence == Sequence::NONE
    };
    if header.attributes.is_transactional() && !header.is_idempotent() {
        return Err(BatchError::TransactionalWithoutProducer);
    }
    if !consistent {
        return Err(BatchError::BadProducer {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            base_sequence: header.base_sequence,
        });
    }
    Ok(())
}

fn check_timestamps(header: &BatchHeader, limits: &Limits) -> Result<(), BatchError> {
    if header.attributes.timestamp_type() == TimestampType::LogAppendTime {
        return Err(BatchError::AppendTimeFromProducer);
    }
    if header.max_timestamp != Timestamp::NONE && header.max_timestamp < header.base_timestamp {
        return Err(BatchError::BadMaxTimestamp {
            base_timestamp: header.base_timestamp,
            max_timestamp: header.max_timestamp,
        });
    }
    check_timestamp(header.base_timestamp, limits)?;
    check_timestamp(header.max_timestamp, limits)
}

fn check_timestamp(timestamp: Timestamp, limits: &Limits) -> Result<(), BatchError> {
    let (min, max) = (limits.timestamp_min, limits.timestamp_max);
    if timestamp != Timestamp::NONE && !(min..=max).contains(&timestamp) {
        return Err(BatchError::TimestampOutOfRange { timestamp, min, max });
    }
    Ok(())
}

/// Checks each record, and gives the largest timestamp.
fn walk(views: RecordViews<'_>, limits: &Limits) -> Result<Timestamp, BatchError> {
    let mut largest = Timestamp::NONE;
    for (index, view) in views.enumerate() {
        let view = view?;
        if limits.keys_required && view.key.is_none() {
            return Err(BatchError::MissingKey { index: i32::try_from(index).unwrap_or(i32::MAX) });
        }
        check_timestamp(view.timestamp, limits)?;
        largest = largest.max(view.timestamp);
    }
    Ok(largest)
}
