//! One whole batch and what may be done to it.

use bytes::Bytes;
use semel_model::{LeaderEpoch, Offset, Timestamp};

use crate::{
    BatchError, BatchHeader, Compression, DecodeLimits,
    codec::{compress, decompress},
    header::LOG_OVERHEAD,
    walk::{Cursor, RecordViews},
};

/// Where the part that the CRC covers begins.
const CRC_START: usize = 21;

/// One whole batch: `bytes` is exactly the batch, `header` what its first 61 bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Of these bytes.
    pub header: BatchHeader,
    /// Header and records.
    pub bytes: Bytes,
}

impl Batch {
    /// Takes `bytes` as one whole batch. Neither the CRC nor the records are looked at.
    ///
    /// Errors: those of [`BatchHeader::parse`], [`BatchError::Truncated`], [`BatchError::NotOneBatch`].
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        let size = header.size_in_bytes();
        if bytes.len() < size {
            return Err(BatchError::Truncated { needed: size, available: bytes.len() });
        }
        if bytes.len() > size {
            return Err(BatchError::NotOneBatch { extra_bytes: bytes.len() - size });
        }
        Ok(Self { header, bytes })
    }

    /// Header and records, in bytes.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Compares the CRC with the bytes. Errors: [`BatchError::CrcMismatch`].
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let computed = crc32c::crc32c(&self.bytes[CRC_START..]);
        if computed != self.header.crc {
            return Err(BatchError::CrcMismatch { stored: self.header.crc, computed });
        }
        Ok(())
    }

    /// Bytes 0 to 15 with the two fields a leader stamps. They stand outside the CRC, so an append is one
    /// vectored write of this and `bytes[16..]`, without a copy.
    #[must_use]
    pub fn stamped_head(&self, base_offset: Offset, leader_epoch: LeaderEpoch) -> [u8; 16] {
        let mut head = [0; 16];
        head[0..8].copy_from_slice(&base_offset.0.to_be_bytes());
        head[8..12].copy_from_slice(&self.header.length.to_be_bytes());
        head[12..16].copy_from_slice(&leader_epoch.0.to_be_bytes());
        head
    }

    /// The batch with the two fields a leader stamps, for who needs it in one piece. Copies the bytes if they are
    /// shared.
    #[must_use]
    pub fn stamped(self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        let header = self.header.stamped(base_offset, leader_epoch);
        self.with_header(header)
    }

    /// The batch with append time `now` in place of the producer's timestamps (`LogAppendTime`). Copies the
    /// bytes if they are shared.
    #[must_use]
    pub fn with_append_time(self, now: Timestamp) -> Self {
        let header = BatchHeader {
            attributes: self.header.attributes.with_append_time(),
            max_timestamp: now,
            ..self.header
        };
        self.with_header(header)
    }

    /// The batch with the max timestamp that its records really have. Copies the bytes if they are shared.
    #[must_use]
    pub(crate) fn with_max_timestamp(self, max_timestamp: Timestamp) -> Self {
        let header = BatchHeader { max_timestamp, ..self.header };
        self.with_header(header)
    }

    /// Puts another header in front of the same records and corrects the CRC.
    fn with_header(self, mut header: BatchHeader) -> Self {
        let before = self.header.to_bytes();
        let after = header.to_bytes();
        // The CRC is linear: it changes by the change of the covered header bytes, shifted past the records,
        // which needn't be read again.
        let change = crc32c::crc32c(&before[CRC_START..]) ^ crc32c::crc32c(&after[CRC_START..]);
        let record_bytes = self.bytes.len() - BatchHeader::SIZE;
        header.crc = self.header.crc ^ crc32c::crc32c_combine(change, 0, record_bytes);
        let bytes = match self.bytes.try_into_mut() {
            Ok(mut own) => {
                own[..BatchHeader::SIZE].copy_from_slice(&header.to_bytes());
                own.freeze()
            }
            Err(shared) => {
                let mut own = Vec::with_capacity(shared.len());
                own.extend_from_slice(&header.to_bytes());
                own.extend_from_slice(&shared[BatchHeader::SIZE..]);
                own.into()
            }
        };
        Self { header, bytes }
    }

    /// The plain records: a slice of the batch, or its decompressed bytes.
    ///
    /// Errors: [`BatchError::UnknownCodec`], [`BatchError::Decompress`], [`BatchError::DecompressedTooLarge`].
    pub fn payload(&self, limits: &DecodeLimits) -> Result<Payload, BatchError> {
        let packed = self.bytes.slice(BatchHeader::SIZE..);
        let plain = match self.header.attributes.codec()? {
            crate::Codec::None => packed,
            codec => decompress(codec, &packed, limits)?.into(),
        };
        Ok(Payload { header: self.header, plain })
    }

    /// The records, as slices of the batch or of its decompressed bytes.
    ///
    /// Errors: those of [`Batch::payload`] at once, [`BatchError::MalformedRecord`] from the iterator.
    pub fn records(&self, limits: &DecodeLimits) -> Result<Records, BatchError> {
        Ok(self.payload(limits)?.records())
    }

    /// The batch compressed as `to` says; itself if it already has that codec. All else stays.
    ///
    /// The records are walked, so a batch that comes out is well formed inside too.
    /// Errors: those of [`Batch::payload`], [`BatchError::MalformedRecord`], [`BatchError::TooLarge`].
    pub fn recompress(&self, to: Compression, limits: &DecodeLimits) -> Result<Self, BatchError> {
        if self.header.attributes.codec()? == to.codec {
            return Ok(self.clone());
        }
        let payload = self.payload(limits)?;
        payload.check()?;
        seal_records(self.header, to, &payload.plain)
    }
}

/// The plain records of a batch, whatever codec it has.
#[derive(Clone, Debug)]
pub struct Payload {
    header: BatchHeader,
    plain: Bytes,
}

impl Payload {
    /// The records' bytes, uncompressed.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.plain
    }

    /// A walk without allocation.
    #[must_use]
    pub fn views(&self) -> RecordViews<'_> {
        RecordViews::new(&self.header, &self.plain)
    }

    /// A walk whose records own their slices.
    #[must_use]
    pub fn records(self) -> Records {
        Records { cursor: Cursor::new(&self.header), plain: self.plain }
    }

    /// Walks once. Errors: [`BatchError::MalformedRecord`].
    pub fn check(&self) -> Result<(), BatchError> {
        self.views().try_for_each(|view| view.map(drop))
    }
}

/// A header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// UTF-8 by convention; any bytes on the wire.
    pub key: Bytes,
    /// `None` is null, which is not empty.
    pub value: Option<Bytes>,
}

/// A record with its own handles on the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its offset minus the batch's base offset.
    pub offset_delta: i32,
    /// The producer's, or the append time of the batch.
    pub timestamp: Timestamp,
    /// `None` is null, which is not empty.
    pub key: Option<Bytes>,
    /// `None` is null: a tombstone on a compacted topic.
    pub value: Option<Bytes>,
    /// In order, with repeated keys as they are.
    pub headers: Vec<RecordHeader>,
}

/// The records of a batch, in order. Ends after the first error.
///
/// Errors: [`BatchError::MalformedRecord`].
#[derive(Clone, Debug)]
pub struct Records {
    plain: Bytes,
    cursor: Cursor,
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let view = match self.cursor.next(&self.plain)? {
            Ok(view) => view,
            Err(error) => return Some(Err(error)),
        };
        let own = |bytes: &[u8]| self.plain.slice_ref(bytes);
        // The headers were walked, so their count is real.
        let headers = view
            .headers()
            .map(|(key, value)| RecordHeader { key: own(key), value: value.map(own) })
            .collect();
        Some(Ok(Record {
            offset_delta: view.offset_delta,
            timestamp: view.timestamp,
            key: view.key.map(own),
            value: view.value.map(own),
            headers,
        }))
    }
}

/// Makes a batch of a header and plain records; length, codec and CRC of the header are set here.
pub(crate) fn seal_records(
    header: BatchHeader,
    compression: Compression,
    plain: &[u8],
) -> Result<Batch, BatchError> {
    let mut bytes = Vec::with_capacity(BatchHeader::SIZE + plain.len());
    bytes.resize(BatchHeader::SIZE, 0);
    compress(compression, plain, &mut bytes)?;
    seal(header, compression, bytes)
}

/// Makes a batch of a header and `bytes`, in which the records (as compressed as they shall be) stand behind room
/// for the header; length, codec and CRC of the header are set here.
pub(crate) fn seal(
    mut header: BatchHeader,
    compression: Compression,
    mut bytes: Vec<u8>,
) -> Result<Batch, BatchError> {
    let length = i32::try_from(bytes.len() - LOG_OVERHEAD)
        .map_err(|_| BatchError::TooLarge { size: bytes.len(), max: i32::MAX as usize })?;
    header.length = length;
    header.attributes = header.attributes.with_codec(compression.codec);
    bytes[..BatchHeader::SIZE].copy_from_slice(&header.to_bytes());
    header.crc = crc32c::crc32c(&bytes[CRC_START..]);
    bytes[17..21].copy_from_slice(&header.crc.to_be_bytes());
    Ok(Batch { header, bytes: bytes.into() })
}
