//! The 61 bytes in front of every batch.
//!
//! ```text
//!  byte  bytes
//!     0      8  base offset            stamped by the leader
//!     8      4  batch length           bytes that follow this field: 49 + the records
//!    12      4  partition leader epoch stamped by the leader
//!    16      1  magic                  2
//!    17      4  CRC-32C                of everything from byte 21 to the end
//!    21      2  attributes             ─┐
//!    23      4  last offset delta       │
//!    27      8  base timestamp          │  covered by the CRC
//!    35      8  max timestamp           │
//!    43      8  producer id             │
//!    51      2  producer epoch          │
//!    53      4  base sequence           │
//!    57      4  record count            │
//!    61      …  records, compressed    ─┘
//! ```
//!
//! All numbers are big-endian. Base offset and leader epoch stand outside the CRC, so that a leader can stamp
//! them without reading the records. Source: KIP-98, and KIP-534 for the delete horizon.

use semel_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{BatchError, Codec};

/// The version of the format.
pub const MAGIC: i8 = 2;

/// Bytes in front of what the length field counts: base offset and the length itself.
pub const LOG_OVERHEAD: usize = 12;

/// Bytes that a batch without records has after its length field.
const LENGTH_MIN: i32 = (BatchHeader::SIZE - LOG_OVERHEAD) as i32;

/// The least a record takes: length, attributes, two deltas, null key, null value, no headers.
const RECORD_SIZE_MIN: i64 = 7;

/// Whose clock a batch's timestamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's; each record has its own.
    CreateTime,
    /// The leader's when it appended; all records share the batch's max timestamp.
    LogAppendTime,
}

/// The attribute bits of a batch.
///
/// ```text
///  15…7      6               5        4              3               2…0
///  unused    delete horizon  control  transactional  timestamp type  codec
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC: i16 = 0b111;
    const APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// Of a plain batch compressed with `codec`.
    #[must_use]
    pub const fn new(codec: Codec) -> Self {
        Self(codec.id() as i16)
    }

    /// How the records are compressed. Errors: [`BatchError::UnknownCodec`].
    pub const fn codec(self) -> Result<Codec, BatchError> {
        let id = (self.0 & Self::CODEC) as u8;
        match Codec::from_id(id) {
            Some(codec) => Ok(codec),
            None => Err(BatchError::UnknownCodec { id }),
        }
    }

    /// Whose clock the timestamps come from.
    #[must_use]
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::APPEND_TIME == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime }
    }

    /// Whether the batch is part of a transaction.
    #[must_use]
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the batch holds a control record, which consumers never see.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is the time from which tombstones and markers may go (KIP-534).
    #[must_use]
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// The bits that no version of the format gives a meaning.
    #[must_use]
    pub const fn unused_bits(self) -> i16 {
        self.0
            & !(Self::CODEC | Self::APPEND_TIME | Self::TRANSACTIONAL | Self::CONTROL | Self::DELETE_HORIZON)
    }

    pub(crate) const fn with_codec(self, codec: Codec) -> Self {
        Self((self.0 & !Self::CODEC) | codec.id() as i16)
    }

    pub(crate) const fn with_append_time(self) -> Self {
        Self(self.0 | Self::APPEND_TIME)
    }

    pub(crate) const fn with_transactional(self) -> Self {
        Self(self.0 | Self::TRANSACTIONAL)
    }

    pub(crate) const fn with_control(self) -> Self {
        Self(self.0 | Self::CONTROL)
    }

    pub(crate) const fn with_delete_horizon(self, set: bool) -> Self {
        if set { Self(self.0 | Self::DELETE_HORIZON) } else { Self(self.0 & !Self::DELETE_HORIZON) }
    }
}

/// The header of a batch, its magic 2 understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The offset of the batch's first position (which compaction may have emptied).
    pub base_offset: Offset,
    /// Bytes after the length field, 49 at least.
    pub length: i32,
    /// The leadership under which the batch was appended.
    pub leader_epoch: LeaderEpoch,
    /// CRC-32C of the bytes from the attributes to the end.
    pub crc: u32,
    /// Codec, timestamp type and the rest.
    pub attributes: Attributes,
    /// Last offset minus base offset; kept by compaction. 0 at least.
    pub last_offset_delta: i32,
    /// What records' timestamps are deltas to: the first record's, or the delete horizon (KIP-534).
    pub base_timestamp: Timestamp,
    /// The largest timestamp of the records, or the append time.
    pub max_timestamp: Timestamp,
    /// -1 if the producer is not idempotent.
    pub producer_id: ProducerId,
    /// -1 if the producer is not idempotent.
    pub producer_epoch: ProducerEpoch,
    /// The sequence of the position at `base_offset`; -1 if there is none.
    pub base_sequence: Sequence,
    /// How many records follow; 0 in a batch that compaction emptied but that its producer's state still needs.
    pub record_count: i32,
}

impl BatchHeader {
    /// In bytes.
    pub const SIZE: usize = 61;

    /// Reads the header at the start of `bytes`, which may go on behind it.
    ///
    /// Checks only what the header alone can tell: magic, length, counts and deltas. Not the CRC, the codec or
    /// whether the whole batch is there.
    /// Errors: [`BatchError::Truncated`], [`BatchError::UnsupportedMagic`], [`BatchError::BadLength`],
    /// [`BatchError::BadCount`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // The magic stands at byte 16 in every version of the format: an old message gets its own error.
        if let Some(&magic) = bytes.get(16)
            && magic as i8 != MAGIC
        {
            return Err(BatchError::UnsupportedMagic { magic: magic as i8 });
        }
        let Some(raw) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(BatchError::Truncated { needed: Self::SIZE, available: bytes.len() });
        };
        let header = Self {
            base_offset: Offset(i64::from_be_bytes(field(raw, 0))),
            length: i32::from_be_bytes(field(raw, 8)),
            leader_epoch: LeaderEpoch(i32::from_be_bytes(field(raw, 12))),
            crc: u32::from_be_bytes(field(raw, 17)),
            attributes: Attributes(i16::from_be_bytes(field(raw, 21))),
            last_offset_delta: i32::from_be_bytes(field(raw, 23)),
            base_timestamp: Timestamp(i64::from_be_bytes(field(raw, 27))),
            max_timestamp: Timestamp(i64::from_be_bytes(field(raw, 35))),
            producer_id: ProducerId(i64::from_be_bytes(field(raw, 43))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(field(raw, 51))),
            base_sequence: Sequence(i32::from_be_bytes(field(raw, 53))),
            record_count: i32::from_be_bytes(field(raw, 57)),
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), BatchError> {
        if self.length < LENGTH_MIN {
            return Err(BatchError::BadLength { length: self.length });
        }
        let record_bytes = i64::from(self.length - LENGTH_MIN);
        let count = i64::from(self.record_count);
        let fits = self.last_offset_delta >= 0
            && (0..=i64::from(self.last_offset_delta) + 1).contains(&count)
            // Only uncompressed records show their count in their size.
            && (self.attributes.0 & Attributes::CODEC != 0 || count * RECORD_SIZE_MIN <= record_bytes);
        if !fits {
            return Err(BatchError::BadCount {
                record_count: self.record_count,
                last_offset_delta: self.last_offset_delta,
            });
        }
        Ok(())
    }

    /// Writes the header as [`parse`](Self::parse) reads it.
    pub fn write(&self, to: &mut [u8; Self::SIZE]) {
        to[0..8].copy_from_slice(&self.base_offset.0.to_be_bytes());
        to[8..12].copy_from_slice(&self.length.to_be_bytes());
        to[12..16].copy_from_slice(&self.leader_epoch.0.to_be_bytes());
        to[16] = MAGIC as u8;
        to[17..21].copy_from_slice(&self.crc.to_be_bytes());
        to[21..23].copy_from_slice(&self.attributes.0.to_be_bytes());
        to[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        to[27..35].copy_from_slice(&self.base_timestamp.0.to_be_bytes());
        to[35..43].copy_from_slice(&self.max_timestamp.0.to_be_bytes());
        to[43..51].copy_from_slice(&self.producer_id.0.to_be_bytes());
        to[51..53].copy_from_slice(&self.producer_epoch.0.to_be_bytes());
        to[53..57].copy_from_slice(&self.base_sequence.0.to_be_bytes());
        to[57..61].copy_from_slice(&self.record_count.to_be_bytes());
    }

    /// The header as [`write`](Self::write) writes it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        self.write(&mut bytes);
        bytes
    }

    /// The same header with the two fields that a leader stamps.
    #[must_use]
    pub const fn stamped(self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        Self { base_offset, leader_epoch, ..self }
    }

    /// Of the whole batch, header included.
    #[must_use]
    pub const fn size_in_bytes(&self) -> usize {
        LOG_OVERHEAD + self.length as usize
    }

    /// The offset of the batch's last position (inclusive).
    #[must_use]
    pub const fn last_offset(&self) -> Offset {
        self.base_offset.plus(self.last_offset_delta as i64)
    }

    /// The first offset after the batch.
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        self.last_offset().next()
    }

    /// The sequence of the batch's last position; [`Sequence::NONE`] if it has none.
    #[must_use]
    pub const fn last_sequence(&self) -> Sequence {
        if self.base_sequence.0 < 0 {
            Sequence::NONE
        } else {
            self.base_sequence.plus(self.last_offset_delta)
        }
    }

    /// Whether an idempotent producer (or a coordinator for one) wrote the batch.
    #[must_use]
    pub const fn is_idempotent(&self) -> bool {
        self.producer_id.0 >= 0
    }

    /// From when on tombstones and markers of this batch may go (KIP-534); `None` before a first cleaning.
    #[must_use]
    pub const fn delete_horizon(&self) -> Option<Timestamp> {
        if self.attributes.has_delete_horizon() { Some(self.base_timestamp) } else { None }
    }
}

/// The `N` bytes at `at`, which must lie in the header.
fn field<const N: usize>(raw: &[u8; BatchHeader::SIZE], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&raw[at..at + N]);
    bytes
}
