//! Control records: what the system writes between the users' records.
//!
//! ```text
//!  key:    version (i16)  type (i16)
//!  value:  of an end-of-transaction marker: version (i16)  coordinator epoch (i32)
//! ```
//!
//! Later versions may append fields, and later Kafkas have other types: both are passed over. Source: KIP-98,
//! KIP-595, KIP-853.

use semel_model::{CoordinatorEpoch, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{Batch, BatchBuilder, BatchError, DecodeLimits};

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its records are for everyone.
    Commit,
    /// Its records are for nobody.
    Abort,
}

/// The end of a producer's transaction in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTransactionMarker {
    /// Commit or abort.
    pub outcome: Outcome,
    /// Of the transaction coordinator that wrote it; an older one than seen before is a zombie's.
    pub coordinator_epoch: CoordinatorEpoch,
}

/// What a control record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRecord {
    /// A transaction ended here.
    EndTransaction(EndTransactionMarker),
    /// A Raft leader took over (KIP-595).
    LeaderChange,
    /// The first record of a metadata snapshot (KIP-630).
    SnapshotHeader,
    /// The last record of a metadata snapshot (KIP-630).
    SnapshotFooter,
    /// The version of the Raft protocol (KIP-853).
    KraftVersion,
    /// The voters of the Raft quorum (KIP-853).
    KraftVoters,
    /// A type of a later version, to be passed over.
    Unknown {
        /// As it stands in the key.
        kind: i16,
    },
}

const ABORT: i16 = 0;
const COMMIT: i16 = 1;
const VERSION: i16 = 0;

impl ControlRecord {
    /// Reads a control record's key and value. Errors: [`BatchError::MalformedControlRecord`].
    pub fn parse(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Self, BatchError> {
        let malformed = |reason| BatchError::MalformedControlRecord { reason };
        let &[v0, v1, k0, k1, ..] = key.ok_or_else(|| malformed("its key is null"))? else {
            return Err(malformed("its key is shorter than 4 bytes"));
        };
        if i16::from_be_bytes([v0, v1]) < 0 {
            return Err(malformed("its key has a negative version"));
        }
        let outcome = match i16::from_be_bytes([k0, k1]) {
            ABORT => Outcome::Abort,
            COMMIT => Outcome::Commit,
            2 => return Ok(Self::LeaderChange),
            3 => return Ok(Self::SnapshotHeader),
            4 => return Ok(Self::SnapshotFooter),
            5 => return Ok(Self::KraftVersion),
            6 => return Ok(Self::KraftVoters),
            kind => return Ok(Self::Unknown { kind }),
        };
        let &[v0, v1, e0, e1, e2, e3, ..] = value.ok_or_else(|| malformed("its value is null"))? else {
            return Err(malformed("its value is shorter than 6 bytes"));
        };
        if i16::from_be_bytes([v0, v1]) < 0 {
            return Err(malformed("its value has a negative version"));
        }
        let coordinator_epoch = CoordinatorEpoch(i32::from_be_bytes([e0, e1, e2, e3]));
        Ok(Self::EndTransaction(EndTransactionMarker { outcome, coordinator_epoch }))
    }

    /// The control record in `batch`; `None` if compaction emptied it, or if it is no control batch.
    ///
    /// Errors: those of [`Batch::payload`] and [`ControlRecord::parse`].
    pub fn of(batch: &Batch, limits: &DecodeLimits) -> Result<Option<Self>, BatchError> {
        if !batch.header.attributes.is_control() {
            return Ok(None);
        }
        let payload = batch.payload(limits)?;
        let Some(view) = payload.views().next().transpose()? else { return Ok(None) };
        Self::parse(view.key, view.value).map(Some)
    }
}

/// The batch that ends a transaction of `producer_id` in one partition, to be stamped by its leader.
#[must_use]
pub fn end_txn_marker(
    marker: EndTransactionMarker,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    timestamp: Timestamp,
) -> Batch {
    let kind = match marker.outcome {
        Outcome::Abort => ABORT,
        Outcome::Commit => COMMIT,
    };
    let key = [VERSION.to_be_bytes(), kind.to_be_bytes()].concat();
    let mut value = Vec::with_capacity(6);
    value.extend_from_slice(&VERSION.to_be_bytes());
    value.extend_from_slice(&marker.coordinator_epoch.0.to_be_bytes());
    let mut builder =
        BatchBuilder::new().producer(producer_id, producer_epoch, Sequence::NONE).transactional().control();
    builder.push(timestamp, Some(&key), Some(&value), &[]);
    builder.build().expect("one small record makes a batch")
}
