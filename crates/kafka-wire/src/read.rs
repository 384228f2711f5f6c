//! Reading: a cursor over one frame that refuses what the frame cannot hold.

use bytes::Bytes;
use semel_model::TopicId;
use uuid::Uuid;

use crate::error_code::ErrorCode;
use crate::kstring::KString;
use crate::write::Records;

/// Why bytes are not the message they should be. `at` is a position in the frame, in bytes from its start (the
/// four bytes of its length not counted).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside a value.
    #[error("frame ends at byte {at}: {needed} bytes needed, {remaining} left")]
    Truncated {
        /// Where the value starts.
        at: usize,
        /// Bytes it takes.
        needed: usize,
        /// Bytes there are.
        remaining: usize,
    },
    /// A length that no valid message has: negative where null is not allowed, or larger than the frame.
    #[error("length {length} at byte {at} is impossible with {remaining} bytes left")]
    BadLength {
        /// Where what the length describes would start.
        at: usize,
        /// What the frame says.
        length: i64,
        /// Bytes there are.
        remaining: usize,
    },
    /// A null where this version has none.
    #[error("null at byte {at}")]
    UnexpectedNull {
        /// Where the null ends.
        at: usize,
    },
    /// A string that is not UTF-8.
    #[error("string at byte {at} is not UTF-8")]
    NotUtf8 {
        /// Where its text starts.
        at: usize,
    },
    /// A variable-length integer of more than five bytes.
    #[error("variable-length integer at byte {at} is too long")]
    BadVarint {
        /// Where it starts.
        at: usize,
    },
    /// A tagged field whose value does not fill the size that the frame gives it.
    #[error("tagged field {tag} ends {unread} bytes before its size, at byte {at}")]
    BadTagSize {
        /// Where its value ended.
        at: usize,
        /// The tag.
        tag: u32,
        /// Bytes left over.
        unread: usize,
    },
    /// The arrays would take more memory than a frame of this size may.
    #[error("array of {length} elements at byte {at} exceeds the frame's memory budget")]
    TooMuchMemory {
        /// Where its first element starts.
        at: usize,
        /// Elements that it announces.
        length: usize,
    },
    /// Bytes after the message.
    #[error("{count} bytes after the message")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// An API without a schema here, or no API at all.
    #[error("API key {key} is not supported")]
    UnsupportedApi {
        /// The key in the header.
        key: i16,
    },
    /// A version that the schema does not have.
    #[error("{message} has no version {version}")]
    UnsupportedVersion {
        /// Kafka's name of the message.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
}

/// The longest string of any version.
pub(crate) const STRING_BYTES_MAX: usize = i16::MAX as usize;
/// Memory that decoded arrays may take, per byte of the frame. The leanest honest elements (a topic of one letter
/// without partitions) take about eight times their size on the wire.
const BUDGET_PER_BYTE: usize = 16;
/// Memory that decoded arrays may take whatever the frame's size, in bytes.
const BUDGET_FLOOR: usize = 64 * 1024;

/// A cursor over one frame.
#[derive(Debug)]
pub struct Reader {
    frame: Bytes,
    /// Position of the next byte, ≤ `end`.
    at: usize,
    /// Where reading must stop: the frame's end, or a tagged field's. ≤ `frame.len()`.
    end: usize,
    /// Bytes of memory that arrays may still take.
    budget: usize,
}

macro_rules! integers {
    ($($name:ident: $int:ident),*) => {
        $(pub(crate) fn $name(&mut self) -> Result<$int, DecodeError> {
            Ok($int::from_be_bytes(self.take()?))
        })*
    };
}

impl Reader {
    /// Reads `frame`, which stands without its four bytes of length. The arrays of all messages read from it may
    /// take 16 bytes of memory for each byte of the frame, and 64 KiB.
    #[must_use]
    pub fn new(frame: Bytes) -> Self {
        let end = frame.len();
        let budget = end.saturating_mul(BUDGET_PER_BYTE).saturating_add(BUDGET_FLOOR);
        Self { frame, at: 0, end, budget }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Checks that everything has been read.
    ///
    /// Errors: [`DecodeError::TrailingBytes`].
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count }),
        }
    }

    integers!(i8: i8, i16: i16, u16: u16, i32: i32, i64: i64, f64: f64);

    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.i8()? != 0)
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Ok(Uuid::from_bytes(self.take()?))
    }

    pub(crate) fn topic_id(&mut self) -> Result<TopicId, DecodeError> {
        Ok(TopicId::from_bytes(self.take()?))
    }

    /// A code this table does not know reads as [`ErrorCode::UnknownServerError`], as in Kafka's own clients.
    pub(crate) fn error_code(&mut self) -> Result<ErrorCode, DecodeError> {
        Ok(ErrorCode::from_code(self.i16()?).unwrap_or(ErrorCode::UnknownServerError))
    }

    pub(crate) fn string(&mut self, flex: bool) -> Result<KString, DecodeError> {
        self.nullable_string(flex, false)?.ok_or(DecodeError::UnexpectedNull { at: self.at })
    }

    pub(crate) fn nullable_string(&mut self, flex: bool, null: bool) -> Result<Option<KString>, DecodeError> {
        let length = if flex { self.compact_length()? } else { i64::from(self.i16()?) };
        let Some(length) = self.length(length, null)? else { return Ok(None) };
        // Kafka holds strings to this in compact versions too; a longer one could be read but never written back.
        if length > STRING_BYTES_MAX {
            return Err(DecodeError::BadLength {
                at: self.at,
                length: length as i64,
                remaining: self.remaining(),
            });
        }
        let at = self.at;
        let text = KString::from_utf8(self.slice(length)?).map_err(|_| DecodeError::NotUtf8 { at })?;
        Ok(Some(text))
    }

    pub(crate) fn bytes(&mut self, flex: bool) -> Result<Bytes, DecodeError> {
        self.nullable_bytes(flex, false)?.ok_or(DecodeError::UnexpectedNull { at: self.at })
    }

    pub(crate) fn nullable_bytes(&mut self, flex: bool, null: bool) -> Result<Option<Bytes>, DecodeError> {
        let length = if flex { self.compact_length()? } else { i64::from(self.i32()?) };
        let Some(length) = self.length(length, null)? else { return Ok(None) };
        Ok(Some(self.slice(length)?))
    }

    pub(crate) fn records(&mut self, flex: bool, null: bool) -> Result<Option<Bytes>, DecodeError> {
        self.nullable_bytes(flex, null)
    }

    pub(crate) fn external_records(&mut self, flex: bool, null: bool) -> Result<Records, DecodeError> {
        Ok(self.nullable_bytes(flex, null)?.map_or(Records::Null, Records::Bytes))
    }

    /// `least` is the fewest bytes an element takes: a length that needs more than the frame has is refused
    /// before anything is allocated.
    pub(crate) fn array<T>(
        &mut self,
        flex: bool,
        least: usize,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.nullable_array(flex, false, least, element)?.ok_or(DecodeError::UnexpectedNull { at: self.at })
    }

    pub(crate) fn nullable_array<T>(
        &mut self,
        flex: bool,
        null: bool,
        least: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let length = if flex { self.compact_length()? } else { i64::from(self.i32()?) };
        let Some(length) = self.length(length, null)? else { return Ok(None) };
        if length > self.remaining() / least.max(1) {
            return Err(DecodeError::BadLength {
                at: self.at,
                length: length as i64,
                remaining: self.remaining(),
            });
        }
        let memory = length.saturating_mul(size_of::<T>());
        if memory > self.budget {
            return Err(DecodeError::TooMuchMemory { at: self.at, length });
        }
        self.budget -= memory;
        let mut elements = Vec::with_capacity(length);
        for _ in 0..length {
            elements.push(element(self)?);
        }
        Ok(Some(elements))
    }

    pub(crate) fn nullable_struct<T>(
        &mut self,
        null: bool,
        body: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.i8()? < 0 {
            return if null { Ok(None) } else { Err(DecodeError::UnexpectedNull { at: self.at }) };
        }
        body(self).map(Some)
    }

    /// Reads the tagged fields at the end of a struct. `field` reads the value of a tag it knows and says so;
    /// other tags are skipped.
    pub(crate) fn tags(
        &mut self,
        mut field: impl FnMut(&mut Self, u32) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = self.unsigned_varint()?;
        // A tagged field takes two bytes at least, which ends the loop of a lying count at the frame's end.
        for _ in 0..count {
            let tag = self.unsigned_varint()?;
            let size = self.unsigned_varint()? as usize;
            if size > self.remaining() {
                return Err(self.truncated(size));
            }
            let outer = std::mem::replace(&mut self.end, self.at + size);
            if !field(self, tag)? {
                self.at = self.end;
            }
            if self.at != self.end {
                return Err(DecodeError::BadTagSize { at: self.at, tag, unread: self.end - self.at });
            }
            self.end = outer;
        }
        Ok(())
    }

    pub(crate) fn skip_tags(&mut self) -> Result<(), DecodeError> {
        self.tags(|_, _| Ok(false))
    }

    pub(crate) fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let at = self.at;
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.take::<1>()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::BadVarint { at })
    }

    /// A compact length: 0 is null, otherwise one more than the length. Null comes out as -1.
    fn compact_length(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from(self.unsigned_varint()?) - 1)
    }

    /// `None` is a null that the version allows.
    fn length(&self, length: i64, null: bool) -> Result<Option<usize>, DecodeError> {
        match length {
            -1 if null => Ok(None),
            -1 => Err(DecodeError::UnexpectedNull { at: self.at }),
            _ => match usize::try_from(length) {
                Ok(length) => Ok(Some(length)),
                Err(_) => Err(DecodeError::BadLength { at: self.at, length, remaining: self.remaining() }),
            },
        }
    }

    fn slice(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(self.truncated(length));
        }
        let slice = self.frame.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.frame[self.at..self.end].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(N)),
        }
    }

    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated { at: self.at, needed, remaining: self.remaining() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &[u8]) -> Reader {
        Reader::new(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn varints_end_at_thirty_two_bits() {
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff, 0x0f]).unsigned_varint(), Ok(u32::MAX));
        assert_eq!(
            reader(&[0xff, 0xff, 0xff, 0xff, 0x1f]).unsigned_varint(),
            Err(DecodeError::BadVarint { at: 0 })
        );
        assert_eq!(
            reader(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]).unsigned_varint(),
            Err(DecodeError::BadVarint { at: 0 })
        );
        assert_eq!(reader(&[0xac, 0x02]).unsigned_varint(), Ok(300));
    }

    #[test]
    fn an_array_longer_than_the_frame_is_refused_before_allocating() {
        let error = reader(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1]).array(false, 4, Reader::i32).unwrap_err();
        assert_eq!(error, DecodeError::BadLength { at: 4, length: i64::from(i32::MAX), remaining: 4 });
    }

    #[test]
    fn an_array_beyond_the_budget_is_refused() {
        let mut bytes = 200_000u32.to_be_bytes().to_vec();
        bytes.resize(4 + 200_000, 0);
        let error = reader(&bytes).array(false, 1, |r| r.i8().map(|_| [0u64; 4])).unwrap_err();
        assert_eq!(error, DecodeError::TooMuchMemory { at: 4, length: 200_000 });
    }

    #[test]
    fn a_negative_length_is_null_or_an_error() {
        assert_eq!(reader(&[0xff, 0xff]).nullable_string(false, true), Ok(None));
        assert_eq!(reader(&[0xff, 0xff]).string(false), Err(DecodeError::UnexpectedNull { at: 2 }));
        assert_eq!(
            reader(&[0xff, 0xfe]).nullable_string(false, true),
            Err(DecodeError::BadLength { at: 2, length: -2, remaining: 0 })
        );
        assert_eq!(reader(&[0]).bytes(true), Err(DecodeError::UnexpectedNull { at: 1 }));
    }

    #[test]
    fn a_compact_string_is_no_longer_than_a_plain_one() {
        let compact = |length: usize| {
            let varint =
                [(length + 1) as u8 | 0x80, ((length + 1) >> 7) as u8 | 0x80, ((length + 1) >> 14) as u8];
            [&varint[..], &vec![b'a'; length]].concat()
        };
        let longest = reader(&compact(STRING_BYTES_MAX)).string(true).map(|text| text.as_str().len());
        assert_eq!(longest, Ok(STRING_BYTES_MAX));
        assert_eq!(
            reader(&compact(STRING_BYTES_MAX + 1)).string(true),
            Err(DecodeError::BadLength { at: 3, length: 32_768, remaining: 32_768 })
        );
    }

    #[test]
    fn a_tagged_field_must_fill_its_size_and_may_not_leave_it() {
        let known = |bytes: &[u8]| {
            let mut value = 0;
            let mut r = reader(bytes);
            r.tags(|r, tag| {
                if tag == 7 {
                    value = r.i16()?;
                }
                Ok(tag == 7)
            })
            .map(|()| (value, r.remaining()))
        };
        // Tag 3 is unknown and skipped; tag 7 holds 0x0102.
        assert_eq!(known(&[2, 3, 1, 0xaa, 7, 2, 1, 2, 0xee]), Ok((0x0102, 1)));
        assert_eq!(known(&[1, 7, 3, 1, 2, 3]), Err(DecodeError::BadTagSize { at: 5, tag: 7, unread: 1 }));
        assert_eq!(known(&[1, 7, 1, 1, 2]), Err(DecodeError::Truncated { at: 3, needed: 2, remaining: 1 }));
        assert_eq!(known(&[1, 7, 9, 1, 2]), Err(DecodeError::Truncated { at: 3, needed: 9, remaining: 2 }));
        assert!(matches!(known(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0]), Err(DecodeError::Truncated { .. })));
    }
}
