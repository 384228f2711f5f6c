//! One pass over the records of a batch, without allocation.
//!
//! ```text
//!  record:  length  attributes  timestamp delta  offset delta  key      value    headers
//!           varint  1 byte      varlong          varint        varint+  varint+  varint count, then each
//!                   └──────────── `length` bytes ─────────────────────────────────────────────────────┘
//!  header:  key (varint length ≥ 0, bytes)   value (varint length, -1 is null, bytes)
//! ```
//!
//! A key or value has its length in front, -1 for null. All variable-length numbers are zigzag.

use semel_model::Timestamp;

use crate::{BatchError, BatchHeader, TimestampType, varint};

/// A record as it lies in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its offset minus the batch's base offset.
    pub offset_delta: i32,
    /// The producer's, or the append time of the batch.
    pub timestamp: Timestamp,
    /// What stands in the record: its timestamp minus the batch's base timestamp.
    pub timestamp_delta: i64,
    /// `None` is null, which is not empty.
    pub key: Option<&'a [u8]>,
    /// `None` is null: a tombstone on a compacted topic.
    pub value: Option<&'a [u8]>,
    /// The whole record, its length in front.
    pub raw: &'a [u8],
    /// The part of `raw` from the key's length on, which does not depend on where the record stands.
    pub(crate) tail: &'a [u8],
    headers: HeaderViews<'a>,
}

impl<'a> RecordView<'a> {
    /// Its headers in order, with repeated keys as they are.
    #[must_use]
    pub const fn headers(&self) -> HeaderViews<'a> {
        self.headers
    }
}

/// The headers of a record: key and value (`None` is null), in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderViews<'a> {
    count: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for HeaderViews<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        // The bytes were walked once when the record was read, so this ends early only for the last.
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        let header = take_header(&mut self.rest).ok()?;
        Some(header)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for HeaderViews<'_> {}

/// The records of one batch's plain bytes, in order. Ends after the first error.
///
/// Errors: [`BatchError::MalformedRecord`], also if fewer or more bytes are there than the header's count says.
#[derive(Clone, Debug)]
pub struct RecordViews<'a> {
    plain: &'a [u8],
    cursor: Cursor,
}

impl<'a> RecordViews<'a> {
    pub(crate) fn new(header: &BatchHeader, plain: &'a [u8]) -> Self {
        Self { plain, cursor: Cursor::new(header) }
    }
}

impl<'a> Iterator for RecordViews<'a> {
    type Item = Result<RecordView<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.next(self.plain)
    }
}

/// Where a walk stands; apart from the bytes, so that an owner of the bytes can walk too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    at: usize,
    index: i32,
    count: i32,
    offset_delta_min: i32,
    last_offset_delta: i32,
    base_timestamp: Timestamp,
    append_time: Option<Timestamp>,
    done: bool,
}

impl Cursor {
    pub(crate) fn new(header: &BatchHeader) -> Self {
        Self {
            at: 0,
            index: 0,
            count: header.record_count,
            offset_delta_min: 0,
            last_offset_delta: header.last_offset_delta,
            base_timestamp: header.base_timestamp,
            append_time: match header.attributes.timestamp_type() {
                TimestampType::CreateTime => None,
                TimestampType::LogAppendTime => Some(header.max_timestamp),
            },
            done: false,
        }
    }

    #[inline]
    pub(crate) fn next<'a>(&mut self, plain: &'a [u8]) -> Option<Result<RecordView<'a>, BatchError>> {
        if self.done {
            return None;
        }
        let rest = &plain[self.at..];
        let result = if self.index < self.count {
            self.take(rest)
        } else {
            self.done = true;
            if rest.is_empty() {
                return None;
            }
            Err("bytes follow the last record")
        };
        match result {
            Ok(view) => {
                self.at += view.raw.len();
                self.index += 1;
                // Can't overflow: the delta is at most `last_offset_delta`, and at its maximum no record follows
                // that `take` would let pass.
                self.offset_delta_min = view.offset_delta.saturating_add(1);
                Some(Ok(view))
            }
            Err(reason) => {
                self.done = true;
                Some(Err(BatchError::MalformedRecord { index: self.index, reason }))
            }
        }
    }

    #[inline]
    fn take<'a>(&self, rest: &'a [u8]) -> Result<RecordView<'a>, &'static str> {
        let mut behind = rest;
        let length = varint::take_i32(&mut behind).ok_or("its length is cut off")?;
        let length = usize::try_from(length).map_err(|_| "its length is negative")?;
        let (mut body, behind) = behind.split_at_checked(length).ok_or("it is longer than its batch")?;
        let raw = &rest[..rest.len() - behind.len()];
        // Record attributes have no meaning yet, and a reader has to pass over those of the future.
        body = body.get(1..).ok_or("its attributes are cut off")?;
        let timestamp_delta = varint::take_i64(&mut body).ok_or("its timestamp delta is cut off")?;
        let offset_delta = varint::take_i32(&mut body).ok_or("its offset delta is cut off")?;
        if offset_delta < self.offset_delta_min || offset_delta > self.last_offset_delta {
            return Err("its offset delta is out of order");
        }
        let tail = body;
        let key = take_nullable(&mut body).ok_or("its key is cut off")?;
        let value = take_nullable(&mut body).ok_or("its value is cut off")?;
        let headers = take_headers(body)?;
        let timestamp = match self.append_time {
            Some(append_time) => append_time,
            None => Timestamp(self.base_timestamp.0.saturating_add(timestamp_delta)),
        };
        Ok(RecordView { offset_delta, timestamp, timestamp_delta, key, value, raw, tail, headers })
    }
}

#[inline]
fn take_headers(mut body: &[u8]) -> Result<HeaderViews<'_>, &'static str> {
    let count = varint::take_i32(&mut body).ok_or("its header count is cut off")?;
    let count = usize::try_from(count).map_err(|_| "its header count is negative")?;
    let rest = body;
    // Each takes two bytes at least, so a huge count ends soon, at the end of the bytes.
    for _ in 0..count {
        take_header(&mut body)?;
    }
    if !body.is_empty() {
        return Err("bytes follow its last header");
    }
    Ok(HeaderViews { count, rest })
}

fn take_header<'a>(body: &mut &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), &'static str> {
    let key = take_nullable(body).ok_or("a header's key is cut off")?.ok_or("a header's key is null")?;
    let value = take_nullable(body).ok_or("a header's value is cut off")?;
    Ok((key, value))
}

/// Takes a length and so many bytes off the front; the inner `None` is null (-1), the outer one malformed.
#[inline]
fn take_nullable<'a>(from: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let length = varint::take_i32(from)?;
    if length == -1 {
        return Some(None);
    }
    let (bytes, rest) = from.split_at_checked(usize::try_from(length).ok()?)?;
    *from = rest;
    Some(Some(bytes))
}

/// Appends a record; `put_tail` writes what stands from the key's length on, `tail_size` bytes.
pub(crate) fn put_record(
    to: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i32,
    tail_size: usize,
    put_tail: impl FnOnce(&mut Vec<u8>),
) {
    let size = 1 + varint::size_i64(timestamp_delta) + varint::size_i32(offset_delta) + tail_size;
    // A record that doesn't fit an `i32` makes a batch that doesn't either, which `seal` refuses.
    varint::put_i32(to, i32::try_from(size).unwrap_or(i32::MAX));
    to.push(0);
    varint::put_i64(to, timestamp_delta);
    varint::put_i32(to, offset_delta);
    put_tail(to);
}

/// Appends a nullable key or value with its length.
pub(crate) fn put_nullable(to: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::put_i32(to, -1),
        Some(bytes) => {
            varint::put_i32(to, i32::try_from(bytes.len()).unwrap_or(i32::MAX));
            to.extend_from_slice(bytes);
        }
    }
}

/// How many bytes [`put_nullable`] takes.
pub(crate) fn size_nullable(bytes: Option<&[u8]>) -> usize {
    match bytes {
        None => 1,
        Some(bytes) => varint::size_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX)) + bytes.len(),
    }
}
