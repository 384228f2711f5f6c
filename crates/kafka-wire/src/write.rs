//! Writing: one growing buffer, and the places where record batches are spliced in when the frame is sent.

use bytes::{BufMut, Bytes, BytesMut};
use semel_model::TopicId;
use uuid::Uuid;

use crate::error_code::ErrorCode;
use crate::kstring::KString;
use crate::read::STRING_BYTES_MAX;

/// Why a message cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The schema has no such version.
    #[error("{message} has no version {version}")]
    UnsupportedVersion {
        /// Kafka's name of the message.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A field holds a value that the version cannot carry and that may not be dropped.
    #[error("{message} version {version} cannot carry {field}")]
    NotInVersion {
        /// Kafka's name of the struct.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A null in a field that has none in the version.
    #[error("{field} may not be null")]
    Null {
        /// The field.
        field: &'static str,
    },
    /// A string, array or byte string longer than its length field can say.
    #[error("{field} is too long: {length}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length: bytes of a string, elements of an array.
        length: usize,
    },
    /// A whole frame longer than 2 GiB.
    #[error("frame of {length} bytes is too long")]
    FrameTooLong {
        /// Bytes after the four of its length.
        length: u64,
    },
}

/// A payload that stays where it is until the frame is sent, such as a range of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// Says which payload; the caller's own numbering.
    pub token: u32,
    /// Its size, in bytes. The sender must put exactly this many bytes at its place.
    pub len: u32,
}

/// The record batches of a fetched partition.
///
/// Kafka's brokers answer "no records" with empty bytes, not with null, and some clients expect that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Records {
    /// Null.
    #[default]
    Null,
    /// Batches in memory.
    Bytes(Bytes),
    /// Batches that the sender splices in: the frame counts their length, and holds their place.
    External(External),
}

/// One piece of a frame, to be sent in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes in memory, never empty.
    Bytes(Bytes),
    /// A payload to splice in here.
    External(External),
}

/// A frame ready to be sent: its four bytes of length, header and body, in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    chunks: Vec<Chunk>,
    len: usize,
}

impl Frame {
    /// The pieces, in the order to send them.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The pieces, in the order to send them.
    #[must_use]
    pub fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }

    /// Bytes on the wire, the four of the length and all external payloads included.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.len
    }

    /// The frame as one run of bytes, with external payloads from `payload`. Copies: for tests and small frames.
    ///
    /// `None` if `payload` gives one of the wrong length.
    pub fn assemble(&self, mut payload: impl FnMut(External) -> Bytes) -> Option<Bytes> {
        let mut whole = BytesMut::with_capacity(self.len);
        for chunk in &self.chunks {
            match chunk {
                Chunk::Bytes(bytes) => whole.put_slice(bytes),
                Chunk::External(external) => {
                    let bytes = payload(*external);
                    if bytes.len() != external.len as usize {
                        return None;
                    }
                    whole.put_slice(&bytes);
                }
            }
        }
        Some(whole.freeze())
    }
}

/// Record batches in memory of at least this many bytes are passed on, smaller ones copied into the buffer.
const SPLICE_FROM: usize = 4096;
/// Bytes of a frame's length field.
const LENGTH: usize = 4;

/// Where messages are written.
#[derive(Debug, Default)]
pub struct Writer {
    buf: BytesMut,
    /// Payloads with the position in `buf` before which they stand, ascending.
    splices: Vec<(usize, Chunk)>,
}

macro_rules! numbers {
    ($($name:ident: $int:ident, $put:ident);*) => {
        $(pub(crate) fn $name(&mut self, value: $int) {
            self.buf.$put(value);
        })*
    };
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A writer that starts with the place of a frame's length. Finish it with [`Writer::into_frame`].
    pub(crate) fn framed() -> Self {
        let mut buf = BytesMut::with_capacity(256);
        buf.put_bytes(0, LENGTH);
        Self { buf, splices: Vec::new() }
    }

    /// What was written, in pieces, without a frame's length.
    #[must_use]
    pub fn into_chunks(self) -> Vec<Chunk> {
        let mut chunks = Vec::with_capacity(2 * self.splices.len() + 1);
        let buf = self.buf.freeze();
        let mut from = 0;
        for (at, splice) in self.splices {
            if at > from {
                chunks.push(Chunk::Bytes(buf.slice(from..at)));
                from = at;
            }
            chunks.push(splice);
        }
        if buf.len() > from {
            chunks.push(Chunk::Bytes(buf.slice(from..)));
        }
        chunks
    }

    pub(crate) fn into_frame(mut self) -> Result<Frame, EncodeError> {
        let spliced: u64 = self
            .splices
            .iter()
            .map(|(_, chunk)| match chunk {
                Chunk::Bytes(bytes) => bytes.len() as u64,
                Chunk::External(external) => u64::from(external.len),
            })
            .sum();
        let length = (self.buf.len() - LENGTH) as u64 + spliced;
        let Ok(prefix) = i32::try_from(length) else { return Err(EncodeError::FrameTooLong { length }) };
        self.buf[..LENGTH].copy_from_slice(&prefix.to_be_bytes());
        Ok(Frame { chunks: self.into_chunks(), len: prefix as usize + LENGTH })
    }

    numbers!(i8: i8, put_i8; i16: i16, put_i16; u16: u16, put_u16; i32: i32, put_i32; i64: i64, put_i64; f64: f64, put_f64);

    pub(crate) fn bool(&mut self, value: bool) {
        self.buf.put_u8(u8::from(value));
    }

    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.buf.put_slice(value.as_bytes());
    }

    pub(crate) fn topic_id(&mut self, value: TopicId) {
        self.buf.put_slice(&value.to_bytes());
    }

    pub(crate) fn error_code(&mut self, value: ErrorCode) {
        self.buf.put_i16(value.code());
    }

    pub(crate) fn string(
        &mut self,
        flex: bool,
        value: &KString,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        self.nullable_string(flex, false, Some(value), field)
    }

    pub(crate) fn nullable_string(
        &mut self,
        flex: bool,
        null: bool,
        value: Option<&KString>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        let text = value.map(|text| text.as_bytes());
        // A string is held to 32,767 bytes in compact versions too, so that every version can carry it.
        let length = checked(text.map(<[u8]>::len), null, STRING_BYTES_MAX, field)?;
        if flex {
            self.compact_length(length);
        } else {
            self.buf.put_i16(length.map_or(-1, |length| length as i16));
        }
        self.buf.put_slice(text.unwrap_or_default());
        Ok(())
    }

    pub(crate) fn bytes(
        &mut self,
        flex: bool,
        value: &Bytes,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        self.nullable_bytes(flex, false, Some(value), field)
    }

    pub(crate) fn nullable_bytes(
        &mut self,
        flex: bool,
        null: bool,
        value: Option<&Bytes>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        self.length(flex, null, value.map(Bytes::len), field)?;
        self.buf.put_slice(value.map_or(&[], |bytes| bytes));
        Ok(())
    }

    pub(crate) fn records(
        &mut self,
        flex: bool,
        null: bool,
        value: &Option<Bytes>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(bytes) if bytes.len() >= SPLICE_FROM => {
                self.length(flex, null, Some(bytes.len()), field)?;
                self.splices.push((self.buf.len(), Chunk::Bytes(bytes.clone())));
                Ok(())
            }
            _ => self.nullable_bytes(flex, null, value.as_ref(), field),
        }
    }

    pub(crate) fn external_records(
        &mut self,
        flex: bool,
        null: bool,
        value: &Records,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Records::Null => self.nullable_bytes(flex, null, None, field),
            Records::Bytes(bytes) if bytes.len() < SPLICE_FROM => {
                self.nullable_bytes(flex, null, Some(bytes), field)
            }
            Records::Bytes(bytes) => {
                self.length(flex, null, Some(bytes.len()), field)?;
                self.splices.push((self.buf.len(), Chunk::Bytes(bytes.clone())));
                Ok(())
            }
            Records::External(external) => {
                self.length(flex, null, Some(external.len as usize), field)?;
                if external.len > 0 {
                    self.splices.push((self.buf.len(), Chunk::External(*external)));
                }
                Ok(())
            }
        }
    }

    pub(crate) fn array<T>(
        &mut self,
        flex: bool,
        values: &[T],
        field: &'static str,
        element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.nullable_array(flex, false, Some(values), field, element)
    }

    pub(crate) fn nullable_array<T>(
        &mut self,
        flex: bool,
        null: bool,
        values: Option<&[T]>,
        field: &'static str,
        mut element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.length(flex, null, values.map(<[T]>::len), field)?;
        for value in values.unwrap_or_default() {
            element(self, value)?;
        }
        Ok(())
    }

    pub(crate) fn nullable_struct<T>(
        &mut self,
        null: bool,
        value: Option<&T>,
        field: &'static str,
        body: impl FnOnce(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => {
                self.i8(1);
                body(self, value)
            }
            None if null => {
                self.i8(-1);
                Ok(())
            }
            None => Err(EncodeError::Null { field }),
        }
    }

    pub(crate) fn no_tags(&mut self) {
        self.buf.put_u8(0);
    }

    /// Writes one tagged field: tag, size, value. The value may hold no spliced payload (the build script sees
    /// to that), because its bytes move when its size is known.
    pub(crate) fn tagged(
        &mut self,
        tag: u32,
        value: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.unsigned_varint(tag);
        let start = self.buf.len();
        value(self)?;
        let size = self.buf.len() - start;
        let size = u32::try_from(size).map_err(|_| EncodeError::FrameTooLong { length: size as u64 })?;
        let end = self.buf.len();
        self.unsigned_varint(size);
        let width = self.buf.len() - end;
        // The size was written behind the value: turn it to the front.
        self.buf[start..].rotate_right(width);
        Ok(())
    }

    pub(crate) fn unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.buf.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.buf.put_u8(value as u8);
    }

    fn length(
        &mut self,
        flex: bool,
        null: bool,
        length: Option<usize>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        let length = checked(length, null, i32::MAX as usize, field)?;
        if flex {
            self.compact_length(length);
        } else {
            self.buf.put_i32(length.map_or(-1, |length| length as i32));
        }
        Ok(())
    }

    /// 0 for null, otherwise one more than the length. `length` is at most `i32::MAX`.
    fn compact_length(&mut self, length: Option<usize>) {
        self.unsigned_varint(length.map_or(0, |length| length as u32 + 1));
    }
}

fn checked(
    length: Option<usize>,
    null: bool,
    max: usize,
    field: &'static str,
) -> Result<Option<usize>, EncodeError> {
    match length {
        None if !null => Err(EncodeError::Null { field }),
        Some(length) if length > max => Err(EncodeError::TooLong { field, length }),
        length => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(w: Writer) -> Vec<u8> {
        w.into_chunks()
            .into_iter()
            .flat_map(|chunk| match chunk {
                Chunk::Bytes(bytes) => bytes.to_vec(),
                Chunk::External(external) => panic!("external payload {external:?}"),
            })
            .collect()
    }

    #[test]
    fn a_tagged_field_has_its_size_in_front() {
        let mut w = Writer::new();
        w.tagged(2, |w| {
            w.i16(0x0102);
            w.tagged(0, |w| w.string(true, &KString::from("ab"), "x"))
        })
        .unwrap();
        assert_eq!(bytes(w), [2, 7, 1, 2, 0, 3, 3, b'a', b'b']);
        let mut w = Writer::new();
        w.tagged(0, |w| w.bytes(true, &Bytes::from(vec![9; 200]), "x")).unwrap();
        assert_eq!(bytes(w)[..6], [0, 0xca, 0x01, 0xc9, 0x01, 9]);
    }

    #[test]
    fn payloads_are_spliced_where_they_stand_and_counted() {
        let mut w = Writer::framed();
        let external = External { token: 7, len: 1_000_000 };
        w.external_records(false, true, &Records::External(external), "records").unwrap();
        w.i8(5);
        let batch = Bytes::from(vec![1; SPLICE_FROM]);
        w.external_records(true, true, &Records::Bytes(batch.clone()), "records").unwrap();
        let frame = w.into_frame().unwrap();
        let body = 4 + 1_000_000 + 1 + 2 + SPLICE_FROM;
        assert_eq!(frame.wire_len(), 4 + body);
        let [Chunk::Bytes(head), Chunk::External(spliced), Chunk::Bytes(middle), Chunk::Bytes(tail)] =
            frame.chunks()
        else {
            panic!("{frame:?}");
        };
        assert_eq!(head[..4], (body as i32).to_be_bytes());
        assert_eq!(head[4..], 1_000_000i32.to_be_bytes());
        assert_eq!(*spliced, external);
        assert_eq!(middle[..], [5, 0x81, 0x20]);
        assert_eq!(tail.as_ptr(), batch.as_ptr());
        assert_eq!(frame.assemble(|_| Bytes::new()), None);
        assert_eq!(frame.assemble(|e| Bytes::from(vec![0; e.len as usize])).unwrap().len(), frame.wire_len());
    }

    #[test]
    fn a_frame_over_two_gibibytes_is_refused() {
        let mut w = Writer::framed();
        let half = Records::External(External { token: 0, len: 1 << 30 });
        w.external_records(true, true, &half, "records").unwrap();
        w.external_records(true, true, &half, "records").unwrap();
        assert!(matches!(w.into_frame(), Err(EncodeError::FrameTooLong { .. })));
        let whole = Records::External(External { token: 0, len: u32::MAX });
        let error = Writer::new().external_records(true, true, &whole, "records").unwrap_err();
        assert_eq!(error, EncodeError::TooLong { field: "records", length: u32::MAX as usize });
    }

    #[test]
    fn lengths_and_nulls_are_checked() {
        let mut w = Writer::new();
        let long = KString::from("x".repeat(40_000));
        assert_eq!(
            w.string(false, &long, "name"),
            Err(EncodeError::TooLong { field: "name", length: 40_000 })
        );
        assert_eq!(
            w.string(true, &long, "name"),
            Err(EncodeError::TooLong { field: "name", length: 40_000 })
        );
        assert_eq!(w.nullable_string(true, false, None, "name"), Err(EncodeError::Null { field: "name" }));
    }
}
