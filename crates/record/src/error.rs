//! What can be wrong with a batch.

use std::io;

use semel_model::{ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::Codec;

/// Why bytes are no batch, or no batch that may be taken. [`kind`](Self::kind) groups them by Kafka's errors.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("batch needs {needed} bytes, only {available} are there")]
    Truncated {
        /// From the batch's first byte.
        needed: usize,
        /// From the batch's first byte.
        available: usize,
    },
    /// The length field can't be one: the smallest batch has 49 bytes after it.
    #[error("batch length {length} is less than 49")]
    BadLength {
        /// As it stands in the header.
        length: i32,
    },
    /// A message of Kafka before 0.11 (magic 0 or 1), or of a future version.
    #[error("record batch magic {magic} is not supported, only 2 is")]
    UnsupportedMagic {
        /// As it stands in the header.
        magic: i8,
    },
    /// The bytes are not those that were written.
    #[error("batch CRC is {stored:#010x} but its bytes give {computed:#010x}")]
    CrcMismatch {
        /// As it stands in the header.
        stored: u32,
        /// CRC-32C of the bytes from the attributes on.
        computed: u32,
    },
    /// A codec number without a codec.
    #[error("compression codec {id} is unknown")]
    UnknownCodec {
        /// Bits 0 to 2 of the attributes.
        id: u8,
    },
    /// The whole batch, overhead included, is larger than allowed.
    #[error("batch of {size} bytes is larger than the allowed {max}")]
    TooLarge {
        /// In bytes, overhead included.
        size: usize,
        /// Inclusive.
        max: usize,
    },
    /// The records are larger than the caller is ready to hold; possibly a decompression bomb.
    #[error("records decompress to more than {max} bytes")]
    DecompressedTooLarge {
        /// Inclusive.
        max: usize,
    },
    /// The compressed bytes are not what the codec writes.
    #[error("cannot decompress {codec} records")]
    Decompress {
        /// The codec of the batch.
        codec: Codec,
        /// What the codec said.
        #[source]
        cause: io::Error,
    },
    /// The codec failed on our own records.
    #[error("cannot compress records with {codec}")]
    Compress {
        /// The codec asked for.
        codec: Codec,
        /// What the codec said.
        #[source]
        cause: io::Error,
    },
    /// A produce request carries exactly one batch per partition.
    #[error("expected exactly one batch, found {extra_bytes} bytes beside it")]
    NotOneBatch {
        /// Bytes after the first batch; 0 if there was no batch at all.
        extra_bytes: usize,
    },
    /// The number of records and the last offset delta can't belong together.
    #[error("batch has {record_count} records and last offset delta {last_offset_delta}")]
    BadCount {
        /// As it stands in the header.
        record_count: i32,
        /// As it stands in the header.
        last_offset_delta: i32,
    },
    /// A record's bytes break the format, at record `index` (from 0).
    #[error("record {index} is malformed: {reason}")]
    MalformedRecord {
        /// Counted from 0 in the batch.
        index: i32,
        /// Which rule is broken.
        reason: &'static str,
    },
    /// A record without a key where compaction needs one.
    #[error("record {index} has no key, which a compacted topic needs")]
    MissingKey {
        /// Counted from 0 in the batch.
        index: i32,
    },
    /// Only coordinators write control batches.
    #[error("a client may not write a control batch")]
    ControlBatch,
    /// Bits that a producer has to leave zero.
    #[error("attributes {attributes:#06x} have bits that a producer may not set")]
    ReservedAttributes {
        /// As they stand in the header.
        attributes: i16,
    },
    /// The producer's fields contradict each other.
    #[error(
        "producer id {producer_id}, epoch {producer_epoch} and sequence {base_sequence} do not belong together"
    )]
    BadProducer {
        /// As it stands in the header.
        producer_id: ProducerId,
        /// As it stands in the header.
        producer_epoch: ProducerEpoch,
        /// As it stands in the header.
        base_sequence: Sequence,
    },
    /// A transaction needs a producer.
    #[error("transactional batch without a producer id")]
    TransactionalWithoutProducer,
    /// The largest timestamp is smaller than the first record's.
    #[error("max timestamp {max_timestamp} is before base timestamp {base_timestamp}")]
    BadMaxTimestamp {
        /// As it stands in the header.
        base_timestamp: Timestamp,
        /// As it stands in the header.
        max_timestamp: Timestamp,
    },
    /// A timestamp too far from the broker's clock (`message.timestamp.before.max.ms`, `.after.max.ms`).
    #[error("timestamp {timestamp} is outside {min}..={max}")]
    TimestampOutOfRange {
        /// The offending one.
        timestamp: Timestamp,
        /// Inclusive.
        min: Timestamp,
        /// Inclusive.
        max: Timestamp,
    },
    /// Only a broker sets the log-append-time bit.
    #[error("a producer may not set the timestamp type to log append time")]
    AppendTimeFromProducer,
    /// A batch was to be built of no records.
    #[error("a batch needs at least one record")]
    NoRecords,
    /// A control record's key or value breaks its schema.
    #[error("control record is malformed: {reason}")]
    MalformedControlRecord {
        /// Which rule is broken.
        reason: &'static str,
    },
}

/// Kafka's error for a [`BatchError`], so that each boundary can match without a `_` arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchErrorKind {
    /// `CORRUPT_MESSAGE` (2): the bytes were damaged on their way; a retry may help.
    CorruptMessage,
    /// `INVALID_RECORD` (87): the producer broke a rule; a retry does not help.
    InvalidRecord,
    /// `INVALID_TIMESTAMP` (32).
    InvalidTimestamp,
    /// `UNSUPPORTED_COMPRESSION_TYPE` (76).
    UnsupportedCompressionType,
    /// `MESSAGE_TOO_LARGE` (10).
    MessageTooLarge,
    /// `UNKNOWN_SERVER_ERROR` (-1): ours, not the producer's.
    UnknownServerError,
}

impl BatchErrorKind {
    /// Kafka's name of the error.
    #[must_use]
    pub const fn kafka_name(self) -> &'static str {
        match self {
            Self::CorruptMessage => "CORRUPT_MESSAGE",
            Self::InvalidRecord => "INVALID_RECORD",
            Self::InvalidTimestamp => "INVALID_TIMESTAMP",
            Self::UnsupportedCompressionType => "UNSUPPORTED_COMPRESSION_TYPE",
            Self::MessageTooLarge => "MESSAGE_TOO_LARGE",
            Self::UnknownServerError => "UNKNOWN_SERVER_ERROR",
        }
    }
}

impl BatchError {
    /// Which of Kafka's errors this is.
    #[must_use]
    pub const fn kind(&self) -> BatchErrorKind {
        match self {
            Self::Truncated { .. }
            | Self::BadLength { .. }
            | Self::CrcMismatch { .. }
            | Self::Decompress { .. } => BatchErrorKind::CorruptMessage,
            Self::UnsupportedMagic { .. }
            | Self::NotOneBatch { .. }
            | Self::BadCount { .. }
            | Self::MalformedRecord { .. }
            | Self::MissingKey { .. }
            | Self::ControlBatch
            | Self::ReservedAttributes { .. }
            | Self::BadProducer { .. }
            | Self::TransactionalWithoutProducer
            | Self::NoRecords
            | Self::MalformedControlRecord { .. } => BatchErrorKind::InvalidRecord,
            Self::BadMaxTimestamp { .. }
            | Self::TimestampOutOfRange { .. }
            | Self::AppendTimeFromProducer => BatchErrorKind::InvalidTimestamp,
            Self::UnknownCodec { .. } => BatchErrorKind::UnsupportedCompressionType,
            Self::TooLarge { .. } | Self::DecompressedTooLarge { .. } => BatchErrorKind::MessageTooLarge,
            Self::Compress { .. } => BatchErrorKind::UnknownServerError,
        }
    }

    /// Kafka's name of the error, as `INVALID_RECORD`.
    #[must_use]
    pub const fn kafka_name(&self) -> &'static str {
        self.kind().kafka_name()
    }
}
