//! What compaction does to a batch: keep some of its records and all of its identity.
//!
//! Offsets, the last offset delta and the producer's fields stay, so that readers see no gap move and a producer
//! table rebuilt from the log is the same. Source: KIP-58, KIP-98; KIP-534 for the delete horizon.

use semel_model::Timestamp;

use crate::{
    Batch, BatchError, BatchHeader, Codec, Compression, DecodeLimits, Payload, RecordView, TimestampType,
    batch::{seal, seal_records},
    walk::put_record,
};

/// What is left of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retained {
    /// Everything: the batch stays as it is, byte for byte.
    All,
    /// Some of it, in this new batch.
    Some(Batch),
    /// No record. The batch may go, or [`Batch::emptied`] may stay for its producer's sake.
    None,
}

impl Batch {
    /// Keeps the records that `keep` says yes to, in a batch of the same identity and codec.
    ///
    /// `payload` is [`Batch::payload`] of this batch, so that a caller who looked at the records before does not
    /// decompress twice. A `delete_horizon` is set if the batch has none yet; it then replaces the base
    /// timestamp, and the records' deltas with it.
    /// Errors: [`BatchError::MalformedRecord`]; those of compression.
    pub fn retain(
        &self,
        payload: &Payload,
        delete_horizon: Option<Timestamp>,
        mut keep: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Retained, BatchError> {
        let new_horizon = delete_horizon.filter(|_| !self.header.attributes.has_delete_horizon());
        let base_timestamp = new_horizon.unwrap_or(self.header.base_timestamp);
        let mut plain = Vec::with_capacity(payload.bytes().len());
        let mut count = 0;
        let mut largest = Timestamp(i64::MIN);
        for view in payload.views() {
            let view = view?;
            if !keep(&view) {
                continue;
            }
            count += 1;
            largest = largest.max(view.timestamp);
            if new_horizon.is_none() {
                plain.extend_from_slice(view.raw);
            } else {
                let created = self.header.base_timestamp.0.wrapping_add(view.timestamp_delta);
                let delta = created.wrapping_sub(base_timestamp.0);
                put_record(&mut plain, delta, view.offset_delta, view.tail.len(), |to| {
                    to.extend_from_slice(view.tail);
                });
            }
        }
        if count == 0 {
            return Ok(Retained::None);
        }
        if count == self.header.record_count && new_horizon.is_none() {
            return Ok(Retained::All);
        }
        let attributes = self.header.attributes;
        let header = BatchHeader {
            attributes: attributes
                .with_delete_horizon(attributes.has_delete_horizon() || new_horizon.is_some()),
            base_timestamp,
            max_timestamp: match attributes.timestamp_type() {
                TimestampType::CreateTime => largest,
                TimestampType::LogAppendTime => self.header.max_timestamp,
            },
            record_count: count,
            ..self.header
        };
        let compression = Compression::of(attributes.codec()?);
        seal_records(header, compression, &plain).map(Retained::Some)
    }

    /// [`Batch::retain`] for a caller who has not looked at the records before.
    ///
    /// Errors: also those of [`Batch::payload`].
    pub fn retain_within(
        &self,
        limits: &DecodeLimits,
        delete_horizon: Option<Timestamp>,
        keep: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Retained, BatchError> {
        self.retain(&self.payload(limits)?, delete_horizon, keep)
    }

    /// The batch without any record: what keeps a producer's last sequence and epoch in the log after all its
    /// records were compacted away.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let header = BatchHeader {
            attributes: self.header.attributes.with_delete_horizon(false),
            base_timestamp: Timestamp::NONE,
            record_count: 0,
            ..self.header
        };
        seal(header, Compression::of(Codec::None), vec![0; BatchHeader::SIZE]).expect("61 bytes are no 2 GiB")
    }
}
