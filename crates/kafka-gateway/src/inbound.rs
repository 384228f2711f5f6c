//! From bytes to frames, without I/O: where the next bytes go, and when a frame is whole.
//!
//! ```text
//! buffer: | int32 length | frame ...... | int32 length | frame, not yet whole |
//! ```

use bytes::{Buf as _, Bytes, BytesMut};

/// Bytes of a frame's length field.
const LENGTH: usize = 4;
/// The smallest frame: API key, version and correlation id.
const FRAME_BYTES_MIN: usize = 8;
/// Read buffers, in bytes: as small as this for a connection that says little, and as large for a busy one.
const READ_MIN: usize = 4 << 10;
const READ_START: usize = 16 << 10;
const READ_MAX: usize = 256 << 10;
/// A frame up to this size, in bytes, gets its buffer on its word alone; larger ones earn it.
pub(crate) const UNEARNED: usize = 64 << 10;
/// How much larger than what has arrived a frame's buffer may be, once past [`UNEARNED`].
const GROWTH: usize = 4;
/// The largest size, in bytes, for which a connection is trusted because it sent such a frame before.
const TRUST_MAX: usize = 4 << 20;

/// A length that no Kafka client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame length {length} is not between 8 and {max}")]
pub(crate) struct BadLength {
    length: i32,
    max: usize,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    buffer: BytesMut,
    frame_bytes_max: usize,
    read_bytes: usize,
    /// Twice the largest frame, with its length field, that this client has sent in full, up to [`TRUST_MAX`]. Its
    /// next one of such a size is read straight into a buffer of its own.
    trusted: usize,
}

impl Inbound {
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), frame_bytes_max, read_bytes: READ_START, trusted: 0 }
    }

    /// Takes the next whole frame, without its length. `None`: more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Bytes>, BadLength> {
        let Some(total) = self.total()? else { return Ok(None) };
        if self.buffer.len() < total {
            return Ok(None);
        }
        self.trusted = self.trusted.max((2 * total).min(TRUST_MAX));
        let mut frame = self.buffer.split_to(total);
        frame.advance(LENGTH);
        if self.buffer.is_empty() && self.buffer.capacity() < READ_MIN {
            // What is left of the allocation belongs to the frame alone.
            self.buffer = BytesMut::new();
        }
        Ok(Some(frame.freeze()))
    }

    /// Size of the frame being received, with its length field; `None` while that is not known.
    fn total(&self) -> Result<Option<usize>, BadLength> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = i32::from_be_bytes(*prefix);
        match usize::try_from(length) {
            Ok(size) if (FRAME_BYTES_MIN..=self.frame_bytes_max).contains(&size) => Ok(Some(LENGTH + size)),
            _ => Err(BadLength { length, max: self.frame_bytes_max }),
        }
    }

    /// The capacity of the buffer that must be made before the next read; `None` if the present one will do.
    pub(crate) fn needed(&self) -> Option<usize> {
        let (have, room) = (self.buffer.len(), self.buffer.capacity());
        // A bad length is reported by `next_frame`, which always comes first.
        let total = self.total().ok().flatten().unwrap_or(LENGTH);
        if total <= self.read_bytes {
            let cramped = room - have < self.read_bytes / 4 && have < self.read_bytes / 2;
            return (room < total || cramped || room == have).then_some(self.read_bytes);
        }
        let believed = UNEARNED.max(self.trusted);
        if total <= believed {
            // At once: the sooner, the less there is to move.
            return (room < total).then_some(total);
        }
        (room == have).then(|| total.min(believed.max(have.saturating_mul(GROWTH))))
    }

    /// Makes a buffer of `capacity` bytes and moves what has arrived into it.
    pub(crate) fn grow(&mut self, capacity: usize) {
        let mut next = BytesMut::with_capacity(capacity.max(self.buffer.len()));
        next.extend_from_slice(&self.buffer);
        self.buffer = next;
    }

    /// Where the next bytes go: has room for at least one after [`needed`](Self::needed) was heeded.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Learns from a read of `count` bytes into room for `room`.
    pub(crate) fn after_read(&mut self, count: usize, room: usize) {
        if count == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_MAX);
        } else if count < self.read_bytes / 8 {
            self.read_bytes = (self.read_bytes / 2).max(READ_MIN);
        }
    }

    /// Gives the buffer back if nothing is in it, so that an idle connection holds none.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// The buffer's size in bytes, as far as it counts against the bounds on requests: an ordinary read buffer
    /// doesn't.
    pub(crate) fn charge(&self) -> usize {
        charge(self.buffer.capacity())
    }

    /// Whether part of a frame has arrived.
    pub(crate) fn is_partial(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// What a buffer of `capacity` bytes counts.
pub(crate) fn charge(capacity: usize) -> usize {
    if capacity > READ_MAX { capacity } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in reads of at most `step`; gives the frames and the largest buffer there was.
    fn feed(inbound: &mut Inbound, bytes: &[u8], step: usize) -> (Vec<Bytes>, usize) {
        let (mut frames, mut largest, mut rest) = (Vec::new(), 0, bytes);
        while !rest.is_empty() {
            if let Some(capacity) = inbound.needed() {
                inbound.grow(capacity);
            }
            let room = inbound.buffer.capacity() - inbound.buffer.len();
            assert!(room > 0);
            let count = rest.len().min(step).min(room);
            inbound.buffer.extend_from_slice(&rest[..count]);
            inbound.after_read(count, room);
            rest = &rest[count..];
            largest = largest.max(inbound.buffer.capacity());
            while let Some(frame) = inbound.next_frame().unwrap() {
                frames.push(frame);
            }
        }
        (frames, largest)
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut bytes = (body.len() as i32).to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    fn body(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    #[test]
    fn frames_come_out_however_the_bytes_come_in() {
        let bodies: Vec<Vec<u8>> = [8, 9, 100, 5000, 16 << 10, 70_000, 8, 400_000, 12].map(body).to_vec();
        let stream: Vec<u8> = bodies.iter().flat_map(|body| framed(body)).collect();
        for step in [1, 3, 1000, 65_536, usize::MAX] {
            let mut inbound = Inbound::new(1 << 20);
            let (frames, _) = feed(&mut inbound, &stream, step);
            assert!(frames == bodies, "step {step}");
            assert!(!inbound.is_partial());
        }
    }

    #[test]
    fn lengths_that_no_client_sends_are_refused() {
        for length in [0, -1, 7, 3, i32::MIN, i32::MAX, (100 << 20) + 1, 0x1603_0100, 0x4745_5420] {
            let mut inbound = Inbound::new(100 << 20);
            inbound.buffer.extend_from_slice(&length.to_be_bytes());
            assert_eq!(inbound.next_frame(), Err(BadLength { length, max: 100 << 20 }));
        }
        let mut inbound = Inbound::new(100 << 20);
        inbound.buffer.extend_from_slice(&(100_i32 << 20).to_be_bytes());
        assert_eq!(inbound.next_frame(), Ok(None));
    }

    #[test]
    fn memory_follows_what_arrived_and_not_what_was_claimed() {
        let mut inbound = Inbound::new(100 << 20);
        let mut bytes = (100_i32 << 20).to_be_bytes().to_vec();
        bytes.push(1);
        let (_, largest) = feed(&mut inbound, &bytes, 1);
        assert!(largest <= UNEARNED, "{largest}");
        // From there on a small multiple of what is there.
        let part = body(3 << 20);
        let mut arrived = bytes.len();
        for piece in part.chunks(10_000) {
            feed(&mut inbound, piece, usize::MAX);
            arrived += piece.len();
            let capacity = inbound.buffer.capacity();
            assert!(capacity <= UNEARNED.max(GROWTH * arrived), "{capacity} bytes held for {arrived}");
        }
    }

    #[test]
    fn a_trusted_client_s_large_frame_is_read_into_a_buffer_of_its_size() {
        let mut inbound = Inbound::new(100 << 20);
        let frame = framed(&body(1 << 20));
        feed(&mut inbound, &frame, usize::MAX);
        inbound.rest();
        feed(&mut inbound, &frame[..20], usize::MAX);
        let capacity = inbound.needed().unwrap();
        assert_eq!(capacity, frame.len());
        inbound.grow(capacity);
        assert_eq!(inbound.needed(), None);
        assert_eq!(inbound.charge(), frame.len());
        let before = inbound.buffer.as_ptr();
        let (frames, _) = feed(&mut inbound, &frame[20..], 100_000);
        assert_eq!(frames[0].as_ptr(), before.wrapping_add(LENGTH), "it was not moved");
        // Trust has its bound.
        let huge = framed(&body(6 << 20));
        feed(&mut inbound, &huge, usize::MAX);
        assert_eq!(inbound.trusted, TRUST_MAX);
        inbound.rest();
        feed(&mut inbound, &huge[..20], usize::MAX);
        assert!(inbound.needed().is_none() && inbound.buffer.capacity() <= READ_MAX);
    }

    #[test]
    fn an_idle_connection_holds_no_buffer() {
        let mut inbound = Inbound::new(1 << 20);
        feed(&mut inbound, &framed(&body(100)), usize::MAX);
        inbound.rest();
        assert_eq!(inbound.buffer.capacity(), 0);
    }
}
