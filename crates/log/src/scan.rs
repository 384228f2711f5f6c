//! Walking the batches of a segment's file, and what its indexes must say about them.

use std::io;

use semel_env::DiskFile;
use semel_model::{Offset, Timestamp};
use semel_record::{BatchHeader, LOG_OVERHEAD};

use crate::index::{self, OffsetEntry, TimeEntry, relative};

/// Read at once while walking headers: with small batches this holds many of them, with large ones it costs no more
/// than the header alone.
const CHUNK: usize = 4096;
/// Read at once while checking checksums.
pub(crate) const CRC_CHUNK: usize = 128 << 10;
/// Where the bytes under a batch's checksum begin.
const CRC_START: u64 = 21;

/// Why a walk stopped before the end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The disk refused.
    Io(io::Error),
    /// What stands where the walk is, is no whole batch that follows the one before it.
    Bad,
}

/// A bad batch within a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage {
    /// Where it begins.
    pub position: u32,
    /// The segment's.
    pub base_offset: Offset,
    /// Where the whole batches before it end.
    pub next_offset: Offset,
    /// Where the segment ends at the latest (exclusive).
    pub limit: Offset,
}

/// Walks batch headers in `position..end` of a file.
pub(crate) struct Headers<'a, F> {
    file: &'a F,
    position: u32,
    end: u32,
    /// The next batch begins at this offset or later.
    floor: Offset,
    chunk: [u8; CHUNK],
    chunk_start: u32,
    chunk_len: usize,
}

impl<'a, F: DiskFile> Headers<'a, F> {
    pub(crate) fn new(file: &'a F, position: u32, end: u32) -> Self {
        Self { file, position, end, floor: Offset::ZERO, chunk: [0; CHUNK], chunk_start: 0, chunk_len: 0 }
    }

    /// The same walk, to which batches below `floor`, its segment's base offset, are damage too.
    pub(crate) fn not_below(self, floor: Offset) -> Self {
        Self { floor, ..self }
    }

    /// Goes on behind damage: with the batch that follows the bad one, or else with the next one of `entries` (of this
    /// segment, in order) that is what its entry says. Its base offset; `None` if neither is a whole valid batch.
    ///
    /// Reads one batch's bytes for each that it tries, and always moves on.
    pub(crate) fn resume(&mut self, damage: Damage, entries: &[OffsetEntry]) -> io::Result<Option<Offset>> {
        let head = self.head_at(damage.position)?;
        // Offsets that go back: an earlier batch may be the one that lies, so nothing behind it is trusted.
        if let Some(Ok(header)) = head.as_ref().map(|head| BatchHeader::parse(head))
            && header.base_offset < damage.next_offset
        {
            return Ok(None);
        }
        // The length may be right where the rest of the header is not: what stands there shows.
        let next = head.and_then(|head| {
            let length = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
            damage.position.checked_add(LOG_OVERHEAD as u32)?.checked_add(length)
        });
        let mut buffer = Vec::new();
        let behind = entries.partition_point(|entry| entry.position <= damage.position);
        let indexed = entries[behind..].iter().map(|entry| (entry.position, Some(entry.relative)));
        for (position, wanted) in next.map(|next| (next, None)).into_iter().chain(indexed) {
            let Some(header) = self.header_at(position)? else { continue };
            let fits = u64::from(position) + header.size_in_bytes() as u64 <= u64::from(self.end)
                && header.base_offset >= damage.next_offset
                && header.next_offset() <= damage.limit
                && wanted
                    .is_none_or(|wanted| relative(damage.base_offset, header.last_offset()) == Some(wanted));
            if fits && crc_matches(self.file, position, &header, &mut buffer)? {
                (self.position, self.floor) = (position, header.base_offset);
                return Ok(Some(header.base_offset));
            }
        }
        Ok(None)
    }

    /// What stands at a position, if that is a header.
    fn header_at(&self, position: u32) -> io::Result<Option<BatchHeader>> {
        Ok(self.head_at(position)?.and_then(|head| BatchHeader::parse(&head).ok()))
    }

    /// As many bytes as a header has; `None` behind the end.
    fn head_at(&self, position: u32) -> io::Result<Option<[u8; BatchHeader::SIZE]>> {
        let mut bytes = [0; BatchHeader::SIZE];
        if u64::from(position) + bytes.len() as u64 > u64::from(self.end) {
            return Ok(None);
        }
        match self.file.read_exact_at(&mut bytes, u64::from(position)) {
            Ok(()) => Ok(Some(bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Where the next batch starts.
    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// The next batch's position and header; `None` at the end. Errors leave the walk where it is.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, BatchHeader)>, Stop> {
        let at = self.position;
        let left = (self.end - at) as usize;
        if left == 0 {
            return Ok(None);
        }
        let skip = at.checked_sub(self.chunk_start).map_or(CHUNK, |skip| skip as usize);
        let bytes = match self.chunk[..self.chunk_len].get(skip..) {
            Some(bytes) if bytes.len() >= BatchHeader::SIZE => bytes,
            _ => {
                let wanted = left.min(CHUNK);
                self.chunk_len = 0;
                self.file.read_exact_at(&mut self.chunk[..wanted], u64::from(at)).map_err(|cause| {
                    match cause.kind() {
                        // The file is shorter than it was: a damaged segment, not a broken disk.
                        io::ErrorKind::UnexpectedEof => Stop::Bad,
                        _ => Stop::Io(cause),
                    }
                })?;
                self.chunk_start = at;
                self.chunk_len = wanted;
                &self.chunk[..wanted]
            }
        };
        let header = BatchHeader::parse(bytes).map_err(|_| Stop::Bad)?;
        let size = header.size_in_bytes();
        // Neither base offset nor leader epoch stand under the checksum: that offsets grow is all that guards them.
        if size > left || header.base_offset < self.floor {
            return Err(Stop::Bad);
        }
        self.floor = header.next_offset();
        // A batch is at most 2 GiB and `left` an u32, so this can't overflow.
        self.position = at + size as u32;
        Ok(Some((at, header)))
    }
}

/// Checks the CRC of the batch at `position` without holding it in memory; `buffer` is scratch.
pub(crate) fn crc_matches<F: DiskFile>(
    file: &F,
    position: u32,
    header: &BatchHeader,
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    buffer.resize(CRC_CHUNK, 0);
    let end = u64::from(position) + LOG_OVERHEAD as u64 + u64::from(header.length.unsigned_abs());
    let mut at = u64::from(position) + CRC_START;
    let mut crc = 0;
    while at < end {
        let count = usize::try_from(end - at).unwrap_or(CRC_CHUNK).min(CRC_CHUNK);
        file.read_exact_at(&mut buffer[..count], at)?;
        crc = crc32c::crc32c_append(crc, &buffer[..count]);
        at += count as u64;
    }
    Ok(crc == header.crc)
}

/// The largest timestamp of some batches and the last offset of the first batch that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxTimestamp {
    pub timestamp: Timestamp,
    pub offset: Offset,
}

impl MaxTimestamp {
    pub(crate) const NONE: Self = Self { timestamp: Timestamp::NONE, offset: Offset(-1) };

    pub(crate) fn add(&mut self, header: &BatchHeader) {
        // A batch that compaction emptied keeps its timestamps, but no record has them.
        if header.max_timestamp > self.timestamp && header.record_count > 0 {
            *self = Self { timestamp: header.max_timestamp, offset: header.last_offset() };
        }
    }
}

/// Which index entries a segment's batches call for. Appending, recovery and compaction all go through this, so that
/// indexes built in any of these ways are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub base_offset: Offset,
    pub interval_bytes: u32,
    pub bytes_since_entry: u32,
    pub max: MaxTimestamp,
    /// The largest timestamp of the first batch; the segment's age counts from it.
    pub first_timestamp: Option<Timestamp>,
    pub next_offset: Offset,
}

impl Tally {
    pub(crate) fn new(base_offset: Offset, interval_bytes: u32) -> Self {
        Self {
            base_offset,
            interval_bytes,
            bytes_since_entry: 0,
            max: MaxTimestamp::NONE,
            first_timestamp: None,
            next_offset: base_offset,
        }
    }

    /// Takes in the batch at `position` and says which entry the offset index gets for it, if any; then
    /// [`time_entry`](Self::time_entry) is due too.
    pub(crate) fn add(&mut self, position: u32, header: &BatchHeader) -> Option<OffsetEntry> {
        self.max.add(header);
        if self.first_timestamp.is_none() && header.max_timestamp >= Timestamp(0) {
            self.first_timestamp = Some(header.max_timestamp);
        }
        self.next_offset = header.next_offset();
        let due = self.bytes_since_entry > self.interval_bytes;
        let size = u32::try_from(header.size_in_bytes()).unwrap_or(u32::MAX);
        self.bytes_since_entry = if due { size } else { self.bytes_since_entry.saturating_add(size) };
        let relative = relative(self.base_offset, header.last_offset()).filter(|_| due)?;
        Some(OffsetEntry { relative, position })
    }

    /// The entry that the time index gets now, unless `last` says it all already.
    pub(crate) fn time_entry(&self, last: Option<TimeEntry>) -> Option<TimeEntry> {
        let newer = last.map_or(Timestamp::NONE, |last| last.timestamp) < self.max.timestamp;
        let relative = relative(self.base_offset, self.max.offset).filter(|_| newer)?;
        Some(TimeEntry { timestamp: self.max.timestamp, relative })
    }
}

/// Both indexes of a segment, in memory, with the tally that made them.
#[derive(Clone, Debug)]
pub(crate) struct Indexed {
    pub tally: Tally,
    pub index: Vec<OffsetEntry>,
    pub times: Vec<TimeEntry>,
}

impl Indexed {
    pub(crate) fn new(base_offset: Offset, interval_bytes: u32) -> Self {
        Self { tally: Tally::new(base_offset, interval_bytes), index: Vec::new(), times: Vec::new() }
    }

    pub(crate) fn add(&mut self, position: u32, header: &BatchHeader) {
        if let Some(entry) = self.tally.add(position, header) {
            index::push(&mut self.index, entry);
            self.add_time();
        }
    }

    /// What a closed segment's time index ends with.
    pub(crate) fn finish(&mut self) {
        self.add_time();
    }

    fn add_time(&mut self) {
        if let Some(entry) = self.tally.time_entry(self.times.last().copied()) {
            index::push(&mut self.times, entry);
        }
    }
}
