//! Makes batches: for producers, coordinators and tests.

use semel_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{
    Batch, BatchError, BatchHeader, Codec, Compression, RecordHeader,
    batch::{seal, seal_records},
    header::Attributes,
    varint,
    walk::{put_nullable, put_record, size_nullable},
};

/// Gathers records into one batch.
///
/// The caller bounds it by [`size_in_bytes`](Self::size_in_bytes) before each push.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    header: BatchHeader,
    compression: Compression,
    /// Room for the header, then the plain records.
    bytes: Vec<u8>,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// Of a producer that is not idempotent, uncompressed, at offset 0.
    #[must_use]
    pub fn new() -> Self {
        Self {
            header: BatchHeader {
                base_offset: Offset::ZERO,
                length: 0,
                leader_epoch: LeaderEpoch::NONE,
                crc: 0,
                attributes: Attributes::new(Codec::None),
                last_offset_delta: -1,
                base_timestamp: Timestamp::NONE,
                max_timestamp: Timestamp::NONE,
                producer_id: ProducerId::NONE,
                producer_epoch: ProducerEpoch::NONE,
                base_sequence: Sequence::NONE,
                record_count: 0,
            },
            compression: Compression::NONE,
            bytes: vec![0; BatchHeader::SIZE],
        }
    }

    /// The codec and level.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// What a leader would stamp.
    #[must_use]
    pub fn stamp(mut self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        self.header = self.header.stamped(base_offset, leader_epoch);
        self
    }

    /// The idempotent producer and the sequence of the first record.
    #[must_use]
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: Sequence) -> Self {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }

    /// As part of the producer's transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_transactional();
        self
    }

    pub(crate) fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_control();
        self
    }

    /// Adds a record at the next offset. `None` is null, which is not empty.
    pub fn push(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[RecordHeader],
    ) {
        if self.header.record_count == 0 {
            self.header.base_timestamp = timestamp;
            self.header.max_timestamp = timestamp;
        }
        self.header.max_timestamp = self.header.max_timestamp.max(timestamp);
        let offset_delta = self.header.record_count;
        // More than `i32::MAX` records are more bytes than a batch can have, which `build` refuses.
        self.header.record_count = self.header.record_count.saturating_add(1);
        self.header.last_offset_delta = offset_delta;
        let timestamp_delta = timestamp.0.wrapping_sub(self.header.base_timestamp.0);
        put_record(&mut self.bytes, timestamp_delta, offset_delta, tail_size(key, value, headers), |to| {
            put_nullable(to, key);
            put_nullable(to, value);
            varint::put_i32(to, header_count(headers));
            for header in headers {
                put_nullable(to, Some(&header.key));
                put_nullable(to, header.value.as_deref());
            }
        });
    }

    /// How many records were pushed.
    #[must_use]
    pub const fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// Of the batch so far, before compression.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The batch, compressed.
    ///
    /// Errors: [`BatchError::NoRecords`], [`BatchError::TooLarge`] past 2 GiB, [`BatchError::Compress`].
    pub fn build(self) -> Result<Batch, BatchError> {
        if self.header.record_count == 0 {
            return Err(BatchError::NoRecords);
        }
        if self.bytes.len() > i32::MAX as usize {
            return Err(BatchError::TooLarge { size: self.bytes.len(), max: i32::MAX as usize });
        }
        match self.compression.codec {
            Codec::None => seal(self.header, self.compression, self.bytes),
            _ => seal_records(self.header, self.compression, &self.bytes[BatchHeader::SIZE..]),
        }
    }
}

fn tail_size(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[RecordHeader]) -> usize {
    let headers_size: usize = headers
        .iter()
        .map(|header| size_nullable(Some(&header.key)) + size_nullable(header.value.as_deref()))
        .sum();
    size_nullable(key) + size_nullable(value) + varint::size_i32(header_count(headers)) + headers_size
}

fn header_count(headers: &[RecordHeader]) -> i32 {
    i32::try_from(headers.len()).unwrap_or(i32::MAX)
}
