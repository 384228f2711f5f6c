//! Record batches (magic 2), written from the format's description alone, and breakable on purpose.
//!
//! ```text
//!  0 base offset i64        21 attributes i16        43 producer id i64      57 record count i32
//!  8 batch length i32       23 last offset delta i32 51 producer epoch i16   61 records
//! 12 leader epoch i32       27 base timestamp i64    53 base sequence i32
//! 16 magic i8               35 max timestamp i64
//! 17 CRC-32C u32, of everything from 21 on
//! ```

/// The bytes before the records.
pub const HEADER: usize = 61;

/// A producer's identity on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    /// Producer id; -1 for none.
    pub id: i64,
    /// Producer epoch; -1 for none.
    pub epoch: i16,
}

/// Not idempotent.
pub const NO_PRODUCER: Producer = Producer { id: -1, epoch: -1 };

/// A key and a value, each of which may be null.
pub type KeyValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A batch to be encoded; the records are already bytes, so that they may be wrong.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Codec in the low three bits, then timestamp type, transactional, control.
    pub attributes: i16,
    /// Base timestamp and largest timestamp, milliseconds since 1970.
    pub timestamps: (i64, i64),
    /// Who writes.
    pub producer: Producer,
    /// Sequence of the first record; -1 for none.
    pub base_sequence: i32,
    /// Claimed number of records.
    pub count: i32,
    /// Claimed offset of the last record relative to the first.
    pub last_offset_delta: i32,
    /// The records, compressed as `attributes` says.
    pub records: Vec<u8>,
}

impl Batch {
    /// A plain batch of records without producer, all at `timestamp`.
    #[must_use]
    pub fn of(timestamp: i64, records: &[KeyValue<'_>]) -> Self {
        let mut bytes = Vec::new();
        for (delta, &(key, value)) in (0i64..).zip(records) {
            record(&mut bytes, 0, delta, key, value);
        }
        let count = i32::try_from(records.len()).unwrap_or(i32::MAX);
        Self {
            attributes: 0,
            timestamps: (timestamp, timestamp),
            producer: NO_PRODUCER,
            base_sequence: -1,
            count,
            last_offset_delta: count - 1,
            records: bytes,
        }
    }

    /// The same batch from an idempotent producer.
    #[must_use]
    pub fn by(mut self, producer: Producer, base_sequence: i32) -> Self {
        self.producer = producer;
        self.base_sequence = base_sequence;
        self
    }

    /// The bytes, with the right length and CRC.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.records.len());
        out.extend_from_slice(&0i64.to_be_bytes());
        let length = i32::try_from(HEADER - 12 + self.records.len()).unwrap_or(i32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&(-1i32).to_be_bytes());
        out.push(2);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.attributes.to_be_bytes());
        out.extend_from_slice(&self.last_offset_delta.to_be_bytes());
        out.extend_from_slice(&self.timestamps.0.to_be_bytes());
        out.extend_from_slice(&self.timestamps.1.to_be_bytes());
        out.extend_from_slice(&self.producer.id.to_be_bytes());
        out.extend_from_slice(&self.producer.epoch.to_be_bytes());
        out.extend_from_slice(&self.base_sequence.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&self.records);
        seal(&mut out);
        out
    }
}

/// Puts the right CRC into an encoded batch whose bytes were changed.
pub fn seal(batch: &mut [u8]) {
    if batch.len() > 21 {
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Appends one record without headers.
pub fn record(
    out: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i64,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
) {
    let mut body = vec![0];
    varint(&mut body, timestamp_delta);
    varint(&mut body, offset_delta);
    for field in [key, value] {
        varint(&mut body, field.map_or(-1, length));
        body.extend_from_slice(field.unwrap_or_default());
    }
    varint(&mut body, 0);
    varint(out, length(&body));
    out.extend_from_slice(&body);
}

fn length(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// A zigzag varint.
pub fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest > 127 {
        out.push((rest & 127) as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// One batch as it lies in a fetch answer or in a log.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Offset of the last record, inclusive.
    pub last_offset: i64,
    /// Attributes.
    pub attributes: i16,
    /// Number of records.
    pub count: i32,
    /// All bytes of the batch.
    pub bytes: &'a [u8],
}

/// The whole batches at the head of `bytes`; a cut one at the end is left out.
pub fn batches(mut bytes: &[u8]) -> impl Iterator<Item = View<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let int =
            |at: usize| i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let size = 12 + usize::try_from(int(8)).ok()?;
        let (batch, rest) = bytes.split_at_checked(size)?;
        let base_offset = i64::from_be_bytes(*header.first_chunk()?);
        bytes = rest;
        Some(View {
            base_offset,
            last_offset: base_offset + i64::from(int(23)),
            attributes: i16::from_be_bytes([header[21], header[22]]),
            count: int(57),
            bytes: batch,
        })
    })
}

/// A Zstandard frame of a few bytes per 128 KiB: `head` as it is, then zeros up to `size` bytes in all.
///
/// RLE blocks say «this byte, so many times», so the frame needs no compressor and no size on our side.
#[must_use]
pub fn zstd_bomb(head: &[u8], size: u64) -> Vec<u8> {
    const BLOCK: u64 = 128 * 1024;
    let mut out = vec![0x28, 0xB5, 0x2F, 0xFD];
    // Frame header: no checksum, no dictionary, not a single segment, no content size; a window of 128 KiB (exponent 7).
    out.extend_from_slice(&[0x00, 7 << 3]);
    let mut block = |last: bool, kind: u32, length: u64, content: &[u8]| {
        let header = u32::from(last) | kind << 1 | u32::try_from(length).unwrap_or(0) << 3;
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.extend_from_slice(content);
    };
    block(false, 0, head.len() as u64, head);
    let mut left = size.saturating_sub(head.len() as u64);
    while left > BLOCK {
        block(false, 1, BLOCK, &[0]);
        left -= BLOCK;
    }
    block(true, 1, left, &[0]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_reads_back() {
        let bytes = Batch::of(1_700_000_000_000, &[(None, Some(b"a")), (Some(b"k"), None)]).encode();
        let views: Vec<_> = batches(&bytes).collect();
        assert_eq!(views.len(), 1);
        assert_eq!((views[0].count, views[0].last_offset), (2, 1));
        assert_eq!(views[0].bytes.len(), bytes.len());
        assert!(batches(&bytes[..bytes.len() - 1]).next().is_none());
    }

    #[test]
    fn varints_are_zigzag() {
        for (value, bytes) in [(0, vec![0]), (-1, vec![1]), (1, vec![2]), (64, vec![0x80, 1])] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out, bytes, "{value}");
        }
    }
}
