//! Reading.

use std::{io, sync::Arc};

use bytes::Bytes;
use semel_env::{Disk, DiskFile};
use semel_model::{Offset, OffsetRange};
use semel_record::BatchHeader;

use crate::{
    error::ReadError,
    index::{Entries, OffsetEntry, TimeEntry, relative},
    partition::PartitionLog,
    scan::{Damage, Headers, Stop},
    warm::Warm,
};

/// Whole batches in a segment's file, ready for `sendfile`. Stays readable whatever happens to the log.
#[derive(Debug)]
pub struct Slice<D: Disk> {
    /// The segment's file.
    pub file: Arc<D::File>,
    /// Where the first batch begins, in bytes.
    pub position: u64,
    /// Of all batches, in bytes; 0 if there is nothing to read yet.
    pub len: u32,
    /// The base offset of the first batch, at most the offset asked for; the offset asked for if there is none.
    pub start_offset: Offset,
    /// Where to read on (exclusive end).
    pub next_offset: Offset,
}

impl<D: Disk> Slice<D> {
    /// Whether there is nothing to read yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the bytes into memory, for connections that can't use `sendfile`.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, self.position)?;
        Ok(bytes.into())
    }
}

impl<D: Disk> Clone for Slice<D> {
    fn clone(&self) -> Self {
        Self { file: Arc::clone(&self.file), ..*self }
    }
}

/// A segment that is being read.
#[derive(Debug)]
pub(crate) enum Place<'a, D: Disk> {
    Active(&'a PartitionLog<D>),
    Closed(Arc<Warm<D>>),
}

impl<D: Disk> Place<'_, D> {
    pub(crate) fn base_offset(&self) -> Offset {
        match self {
            Self::Active(log) => log.active.base_offset,
            Self::Closed(warm) => warm.base_offset,
        }
    }

    pub(crate) fn file(&self) -> &Arc<D::File> {
        match self {
            Self::Active(log) => &log.active.file,
            Self::Closed(warm) => &warm.file,
        }
    }

    pub(crate) fn size(&self) -> u32 {
        match self {
            Self::Active(log) => log.active.size,
            Self::Closed(warm) => warm.size,
        }
    }

    pub(crate) fn last_index(
        &self,
        holds: impl Fn(&OffsetEntry) -> bool,
    ) -> Result<Option<OffsetEntry>, ReadError> {
        Ok(match self {
            Self::Active(log) => log.active.index.entries().last_where(holds)?,
            Self::Closed(warm) => warm.index.last_where(holds)?,
        })
    }

    pub(crate) fn last_time(
        &self,
        holds: impl Fn(&TimeEntry) -> bool,
    ) -> Result<Option<TimeEntry>, ReadError> {
        Ok(match self {
            Self::Active(log) => log.active.times.entries().last_where(holds)?,
            Self::Closed(warm) => warm.times.last_where(holds)?,
        })
    }
}

impl<D: Disk> PartitionLog<D> {
    /// Whole batches from the one that holds `offset` on, of one segment, that end at or before
    /// `max_offset_exclusive` and take at most `max_bytes`. With `min_one` the first batch is given even if it is
    /// larger than `max_bytes`, so that a reader with a small buffer never stands still (KIP-74).
    ///
    /// Empty if nothing lies between `offset` and the bound.
    /// Errors: [`ReadError::OffsetOutOfRange`] outside of `log start ..= log end`; [`ReadError::Corrupt`].
    pub fn read(
        &self,
        offset: Offset,
        max_bytes: u32,
        max_offset_exclusive: Offset,
        min_one: bool,
    ) -> Result<Slice<D>, ReadError> {
        let log_end_offset = self.log_end_offset();
        if offset < self.log_start_offset || offset > log_end_offset {
            return Err(ReadError::OffsetOutOfRange {
                offset,
                log_start_offset: self.log_start_offset,
                log_end_offset,
            });
        }
        let bound = self.bound_before_damage(offset, max_offset_exclusive.min(log_end_offset))?;
        if offset >= bound {
            return Ok(self.nothing_at(offset));
        }
        let mut place = self.place_of(offset)?;
        loop {
            if let Some((position, header)) = self.locate(&place, offset)? {
                return self.cut(&place, offset, position, &header, max_bytes, bound, min_one);
            }
            // Compaction may have emptied the rest of a segment.
            match self.place_after(&place)? {
                Some(next) if next.base_offset() < bound => place = next,
                _ => return Ok(self.nothing_at(offset)),
            }
        }
    }

    fn nothing_at(&self, offset: Offset) -> Slice<D> {
        Slice {
            file: Arc::clone(&self.active.file),
            position: 0,
            len: 0,
            start_offset: offset,
            next_offset: offset,
        }
    }

    /// Damaged offsets are an error for whoever asks for them and the end for whoever asks for earlier ones.
    fn bound_before_damage(&self, offset: Offset, mut bound: Offset) -> Result<Offset, ReadError> {
        for range in &*self.corrupt() {
            if range.contains(offset) {
                return Err(ReadError::Corrupt { from: range.start, to: range.end });
            }
            if range.start > offset {
                bound = bound.min(range.start);
            }
        }
        Ok(bound)
    }

    /// The segment that holds `offset`, or the first one if that is later.
    pub(crate) fn place_of(&self, offset: Offset) -> Result<Place<'_, D>, ReadError> {
        if offset >= self.active.base_offset {
            return Ok(Place::Active(self));
        }
        let found = self.closed.range(..=offset).next_back().or_else(|| self.closed.iter().next());
        match found {
            Some((base, _)) => self.warm(*base).map(Place::Closed),
            None => Ok(Place::Active(self)),
        }
    }

    pub(crate) fn place_after(&self, place: &Place<'_, D>) -> Result<Option<Place<'_, D>>, ReadError> {
        let base = match place {
            Place::Active(_) => return Ok(None),
            Place::Closed(warm) => warm.base_offset,
        };
        match self.closed.range(base.next()..).next() {
            Some((next, _)) => self.warm(*next).map(|warm| Some(Place::Closed(warm))),
            None => Ok(Some(Place::Active(self))),
        }
    }

    /// The first batch of a segment that ends at or after `offset`; `None` if there is none.
    pub(crate) fn locate(
        &self,
        place: &Place<'_, D>,
        offset: Offset,
    ) -> Result<Option<(u32, BatchHeader)>, ReadError> {
        let base = place.base_offset();
        let hint = self.cache().hint(base, offset).filter(|position| *position <= place.size());
        let start = match hint {
            Some(position) => position,
            None => {
                let target = relative(base, offset).unwrap_or(if offset < base { 0 } else { u32::MAX });
                place.last_index(|entry| entry.relative <= target)?.map_or(0, |entry| entry.position)
            }
        };
        let mut expected = base;
        let mut headers =
            Headers::new(&**place.file(), start.min(place.size()), place.size()).not_below(base);
        let segment_end = self.segment_end(base);
        loop {
            let bad_at = match headers.next() {
                Ok(None) => return Ok(None),
                // One that claims offsets of another segment would keep its reader waiting for them.
                Ok(Some((position, header))) if header.next_offset() > segment_end => position,
                Ok(Some((position, header))) => {
                    expected = header.next_offset();
                    if header.last_offset() >= offset {
                        return Ok(Some((position, header)));
                    }
                    continue;
                }
                Err(Stop::Bad) => headers.position(),
                Err(Stop::Io(cause)) => return Err(self.read_failed(base, cause)),
            };
            match self.behind(place, bad_at, expected)? {
                // Behind the damage, which is none of this reader's business.
                Some((position, next)) if next <= offset => {
                    expected = next;
                    headers = Headers::new(&**place.file(), position, place.size()).not_below(next);
                }
                behind => {
                    let end = behind.map_or(segment_end, |(_, next)| next);
                    return Err(self.damaged(OffsetRange { start: expected.max(offset), end }));
                }
            }
        }
    }

    /// Turns the end of a walk at `position`, with offset `expected` next, into the caller's error; damage is noted.
    pub(crate) fn stopped(
        &self,
        place: &Place<'_, D>,
        position: u32,
        expected: Offset,
        stop: Stop,
    ) -> ReadError {
        match stop {
            Stop::Io(cause) => self.read_failed(place.base_offset(), cause),
            Stop::Bad => match self.behind(place, position, expected) {
                Ok(behind) => {
                    let end = behind.map_or(self.segment_end(place.base_offset()), |(_, next)| next);
                    self.damaged(OffsetRange { start: expected, end })
                }
                Err(error) => error,
            },
        }
    }

    fn damaged(&self, range: OffsetRange) -> ReadError {
        self.note_corrupt(range);
        ReadError::Corrupt { from: range.start, to: range.end }
    }

    /// Where a segment can be read again behind the bad batch at `position`, and the first offset there; `None` if
    /// nowhere.
    pub(crate) fn behind(
        &self,
        place: &Place<'_, D>,
        position: u32,
        next_offset: Offset,
    ) -> Result<Option<(u32, Offset)>, ReadError> {
        let base_offset = place.base_offset();
        let mut headers = Headers::new(&**place.file(), position, place.size());
        let damage = Damage { position, base_offset, next_offset, limit: self.segment_end(base_offset) };
        let behind = headers
            .resume(damage, &self.stored_entries(base_offset))
            .map_err(|cause| self.read_failed(base_offset, cause))?;
        Ok(behind.map(|next| (headers.position(), next)))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the bounds of one read, each of its own type or named at the one call"
    )]
    fn cut(
        &self,
        place: &Place<'_, D>,
        offset: Offset,
        position: u32,
        first: &BatchHeader,
        max_bytes: u32,
        bound: Offset,
        min_one: bool,
    ) -> Result<Slice<D>, ReadError> {
        // `locate` found the whole batch within the segment, so its size is an u32.
        let first_size = first.size_in_bytes() as u32;
        if first.next_offset() > bound || (first_size > max_bytes && !min_one) {
            return Ok(self.nothing_at(offset));
        }
        let base = place.base_offset();
        let limit = place.size().min(position.saturating_add(max_bytes));
        let (mut end, mut next_offset) = (position + first_size, first.next_offset());
        let segment_end = self.segment_end(base);
        if limit == place.size() && bound >= segment_end {
            // The rest of the segment: its last batch ends there, so none has to be looked at.
            (end, next_offset) = (limit, segment_end);
        } else if end < limit {
            let target = relative(base, bound).unwrap_or(u32::MAX);
            let jump = place.last_index(|entry| entry.position <= limit && entry.relative < target)?;
            // Up to the entry's position every batch ends below the bound, so none of them is looked at.
            let start = jump.map_or(end, |entry| entry.position.max(end));
            let mut headers = Headers::new(&**place.file(), start, place.size());
            loop {
                match headers.next() {
                    // Offsets that go back: damage that may well name offsets below the bound.
                    Ok(Some((_, header))) if header.base_offset < next_offset => break,
                    Ok(Some((at, header))) => {
                        // Never beyond the bound: what stands there may be damage that names any offset.
                        (end, next_offset) = (at, header.base_offset.min(bound));
                        if headers.position() > limit || header.next_offset() > bound {
                            break;
                        }
                        (end, next_offset) = (headers.position(), header.next_offset());
                    }
                    Ok(None) | Err(Stop::Bad) => break,
                    Err(Stop::Io(cause)) => return Err(self.read_failed(base, cause)),
                }
            }
        }
        self.cache().note(base, next_offset, end);
        Ok(Slice {
            file: Arc::clone(place.file()),
            position: u64::from(position),
            len: end - position,
            start_offset: first.base_offset,
            next_offset,
        })
    }
}
