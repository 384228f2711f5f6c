//! What the producers' table is built from: a snapshot, and the batches after it.

use std::io;

use bytes::Bytes;
use semel_env::{Disk, DiskFile};
use semel_model::Offset;
use semel_record::{Batch, BatchHeader, ControlRecord, DecodeLimits, ProducerSnapshotEntry};

use crate::{
    error::ReadError,
    names::SNAPSHOT,
    partition::PartitionLog,
    scan::{Headers, Stop},
    snapshot,
};

/// A control batch has one record of a few bytes; a larger one is nobody's.
const CONTROL_BYTES_MAX: usize = 64 << 10;

/// The producers' table as some snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducersAt {
    /// The rows.
    pub entries: Vec<ProducerSnapshotEntry>,
    /// The log's end at that moment: the batches from here on are still to be applied.
    pub offset: Offset,
}

impl<D: Disk> PartitionLog<D> {
    /// The latest snapshot of the producers' table that can be read; empty at the log's start if there is none.
    ///
    /// Follow it with [`replay`](Self::replay) from its offset. After [`truncate_to`](Self::truncate_to) both must be
    /// done again.
    #[must_use]
    pub fn producers(&self) -> ProducersAt {
        let end = self.log_end_offset();
        for &offset in self.snapshots.range(..=end).rev() {
            if let Some(entries) = snapshot::read(&self.disk, &self.file_path(offset, SNAPSHOT)) {
                return ProducersAt { entries, offset };
            }
        }
        ProducersAt { entries: Vec::new(), offset: self.segments().next().unwrap_or(self.log_start_offset) }
    }

    /// The headers of the last batches before `offset` in its segment, oldest first: those that begin in the last
    /// `bytes_max` bytes, and a few more. What a snapshot leaves out, a caller can learn again from them.
    pub fn headers_before(&self, offset: Offset, bytes_max: u32) -> Result<Vec<BatchHeader>, ReadError> {
        if offset <= self.segments().next().unwrap_or(self.log_start_offset) {
            return Ok(Vec::new());
        }
        let place = self.place_of(offset.plus(-1))?;
        let end = self.locate(&place, offset)?.map_or(place.size(), |(position, _)| position);
        let from = end.saturating_sub(bytes_max);
        let start = place.last_index(|entry| entry.position <= from)?.map_or(0, |entry| entry.position);
        let mut headers = Headers::new(&**place.file(), start.min(end), end);
        let mut found = Vec::new();
        // Damage is met by whoever reads there; here it only shortens what is remembered.
        while let Ok(Some((_, header))) = headers.next() {
            found.push(header);
        }
        Ok(found)
    }

    /// Shows all batches from offset `from` on, with the control record of those that have one. Only headers are
    /// read. Damaged offsets are passed over.
    pub fn replay(
        &self,
        from: Offset,
        each: &mut dyn FnMut(&BatchHeader, Option<ControlRecord>),
    ) -> Result<(), ReadError> {
        if from >= self.log_end_offset() {
            return Ok(());
        }
        let mut place = self.place_of(from)?;
        loop {
            let start = self.locate_or_damage(&place, from)?;
            let mut headers = Headers::new(&**place.file(), start, place.size());
            let mut expected = from.max(place.base_offset());
            loop {
                match headers.next() {
                    Ok(Some((position, header))) => {
                        expected = header.next_offset();
                        let control = self.control_of(place.file(), position, &header)?;
                        each(&header, control);
                    }
                    Ok(None) => break,
                    Err(Stop::Bad) => {
                        let Some((position, next)) = self.behind(&place, headers.position(), expected)?
                        else {
                            break;
                        };
                        headers = Headers::new(&**place.file(), position, place.size()).not_below(next);
                    }
                    Err(Stop::Io(cause)) => return Err(self.read_failed(place.base_offset(), cause)),
                }
            }
            match self.place_after(&place)? {
                Some(next) => place = next,
                None => return Ok(()),
            }
        }
    }

    /// Where in a segment the batch of `from` begins, or the first one behind damage there; its end if there is none.
    fn locate_or_damage(
        &self,
        place: &crate::read::Place<'_, D>,
        mut from: Offset,
    ) -> Result<u32, ReadError> {
        loop {
            match self.locate(place, from) {
                Ok(found) => return Ok(found.map_or(place.size(), |(position, _)| position)),
                Err(ReadError::Corrupt { to, .. }) if to > from => from = to,
                Err(ReadError::Corrupt { .. }) => return Ok(place.size()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reads the control record of the batch at `position`. `None` if it was emptied by compaction or is malformed: what
/// can't be read can't end a transaction, which then stays open and is seen.
pub(crate) fn read_control<F: DiskFile>(
    file: &F,
    position: u32,
    header: &BatchHeader,
) -> io::Result<Option<ControlRecord>> {
    let size = header.size_in_bytes();
    if size > CONTROL_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, u64::from(position))?;
    let limits = DecodeLimits { decompressed_bytes_max: CONTROL_BYTES_MAX };
    let control = Batch::parse(Bytes::from(bytes)).and_then(|batch| ControlRecord::of(&batch, &limits));
    Ok(control.unwrap_or(None))
}
