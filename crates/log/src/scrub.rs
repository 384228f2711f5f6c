//! Looking for damage where nobody reads: bit rot below the recovery point shows in no start and, as batches leave
//! without a look at their checksums, in no read but at the client.

use std::{io, sync::Arc};

use semel_env::{Disk, Open};
use semel_model::{Offset, OffsetRange};

use crate::{
    error::{Doing, StorageError},
    index::OffsetEntry,
    names::LOG,
    partition::PartitionLog,
    scan::{Damage, Headers, Stop, crc_matches},
};

/// One closed segment to be checked. Taken under the log's lock, run without it.
#[derive(Debug)]
#[must_use = "nothing is checked before `run`"]
pub struct Scrub<D: Disk> {
    file: Arc<D::File>,
    size: u32,
    base_offset: Offset,
    end_offset: Offset,
    truncations: u64,
    index: Vec<OffsetEntry>,
    known: Vec<OffsetRange>,
}

impl<D: Disk> Scrub<D> {
    /// Reads the segment up to damage that is not known yet: the offsets from the first bad batch to the next whole
    /// one, or to the segment's end if none is found. Run it again, from the log, for what else there may be.
    /// `go_on` is asked before each batch; once it says no, the run ends as if the rest were whole.
    pub fn run(&self, go_on: &mut dyn FnMut() -> bool) -> io::Result<Option<OffsetRange>> {
        let mut headers = Headers::new(&*self.file, 0, self.size);
        let mut buffer = Vec::new();
        let mut start = self.base_offset;
        loop {
            let position = match headers.next() {
                Ok(None) => return Ok(None),
                Ok(Some((position, header))) => {
                    if !go_on() {
                        return Ok(None);
                    }
                    if header.base_offset >= start
                        && crc_matches(&*self.file, position, &header, &mut buffer)?
                    {
                        start = header.next_offset();
                        continue;
                    }
                    position
                }
                Err(Stop::Bad) => headers.position(),
                Err(Stop::Io(cause)) => return Err(cause),
            };
            let damage = Damage {
                position,
                base_offset: self.base_offset,
                next_offset: start,
                limit: self.end_offset,
            };
            let behind = headers.resume(damage, &self.index)?;
            let range = OffsetRange { start, end: behind.unwrap_or(self.end_offset) };
            let known = |other: &OffsetRange| other.start <= range.start && range.end <= other.end;
            match behind {
                _ if !self.known.iter().any(known) => return Ok(Some(range)),
                Some(behind) => start = behind,
                None => return Ok(None),
            }
        }
    }
}

impl<D: Disk> PartitionLog<D> {
    /// The check of the closed segment that begins at `base_offset`; `None` if there is none.
    pub fn scrub(&self, base_offset: Offset) -> Result<Option<Scrub<D>>, StorageError> {
        let Some(closed) = self.closed.get(&base_offset) else { return Ok(None) };
        let path = self.file_path(base_offset, LOG);
        let file = Arc::new(self.disk.open(&path, Open::Read).doing("open", &path)?);
        let end_offset = self.segment_end(base_offset);
        Ok(Some(Scrub {
            file,
            size: closed.size,
            base_offset,
            end_offset,
            truncations: self.truncations,
            index: self.stored_entries(base_offset),
            known: self.corrupt_ranges(),
        }))
    }

    /// Takes note of what a check found: these offsets are never served again. Whether there was anything to note; if
    /// the log changed meanwhile there is not.
    pub fn scrubbed(&mut self, scrub: &Scrub<D>, damaged: Option<OffsetRange>) -> bool {
        let same = scrub.truncations == self.truncations
            && self.closed.get(&scrub.base_offset).is_some_and(|closed| closed.size == scrub.size);
        match damaged.filter(|_| same) {
            Some(range) => {
                self.note_corrupt(range);
                true
            }
            None => false,
        }
    }
}
