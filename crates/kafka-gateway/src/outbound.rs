//! From answers to the socket: bytes by `writev`, file ranges by `sendfile`.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use semel_kafka_wire::{Chunk, Frame};
use tokio::{
    io::{AsyncWrite as _, Interest},
    net::TcpStream,
};

use crate::backend::FileRange;

/// The most pieces in one `writev`.
const SLICES_MAX: usize = 32;
/// The most bytes in one `sendfile`: measured best, and it leaves the thread to others in between.
const SENDFILE_BYTES: u64 = 1 << 20;
/// The size of a read where there is no `sendfile`, in bytes.
const READ_BYTES: u64 = 256 << 10;

/// An answer whose file ranges aren't those of its response: a fault of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadAnswer {
    #[error("answer refers to file range {token}, which it has not or has used")]
    NoRange { token: u32 },
    #[error("file range {token} has {actual} bytes and the answer promises {promised}")]
    WrongLength { token: u32, promised: u32, actual: u64 },
}

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct Outbound<R> {
    pieces: VecDeque<Piece<R>>,
    /// Frames not yet sent in full.
    frames: usize,
    /// Bytes in memory not yet sent.
    memory: usize,
}

#[derive(Debug)]
enum Piece<R> {
    Bytes(Bytes),
    File {
        range: R,
        position: u64,
        remaining: u64,
    },
    /// The frame before this is sent.
    End,
}

/// What a turn of writing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// All bytes.
    pub(crate) bytes: usize,
    /// Those that went by `sendfile`.
    pub(crate) sendfile: usize,
}

impl<R: FileRange> Outbound<R> {
    pub(crate) fn new() -> Self {
        Self { pieces: VecDeque::new(), frames: 0, memory: 0 }
    }

    /// Queues a frame. Errors: [`BadAnswer`], and then part of it may be queued: the connection can't go on.
    pub(crate) fn push(&mut self, frame: Frame, ranges: Vec<R>) -> Result<(), BadAnswer> {
        let mut ranges: Vec<Option<R>> = ranges.into_iter().map(Some).collect();
        for chunk in frame.into_chunks() {
            match chunk {
                Chunk::Bytes(bytes) => {
                    self.memory += bytes.len();
                    self.pieces.push_back(Piece::Bytes(bytes));
                }
                Chunk::External(external) => {
                    let token = external.token;
                    let range = ranges
                        .get_mut(token as usize)
                        .and_then(Option::take)
                        .ok_or(BadAnswer::NoRange { token })?;
                    let actual = range.len();
                    if actual != u64::from(external.len) {
                        return Err(BadAnswer::WrongLength { token, promised: external.len, actual });
                    }
                    let position = range.position();
                    self.pieces.push_back(Piece::File { range, position, remaining: actual });
                }
            }
        }
        self.pieces.push_back(Piece::End);
        self.frames += 1;
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Sends what the socket takes, about `budget` bytes at most. `Pending`: the socket takes no more for now, and
    /// `sent` says what it took before.
    ///
    /// Errors: the socket's; `UnexpectedEof` if a file is shorter than its range.
    pub(crate) fn poll_send(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        budget: usize,
        sent: &mut Sent,
    ) -> Poll<io::Result<()>> {
        while sent.bytes < budget {
            match self.pieces.front_mut() {
                None => break,
                Some(Piece::End) => {
                    self.pieces.pop_front();
                    self.frames -= 1;
                }
                Some(Piece::Bytes(_)) => {
                    let count = ready!(self.poll_bytes(stream, cx))?;
                    sent.bytes += count;
                }
                Some(Piece::File { range, position, remaining }) => {
                    if *remaining == 0 {
                        self.pieces.pop_front();
                    } else if range.as_fd().is_some() {
                        let count = ready!(poll_sendfile(stream, cx, range, *position, *remaining))?;
                        *position += count as u64;
                        *remaining -= count as u64;
                        sent.bytes += count;
                        sent.sendfile += count;
                    } else {
                        self.read_piece()?;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the bytes at the front, up to the next file range.
    fn poll_bytes(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut used = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) if used < SLICES_MAX => {
                    slices[used] = IoSlice::new(bytes);
                    used += 1;
                }
                Piece::End => {}
                Piece::Bytes(_) | Piece::File { .. } => break,
            }
        }
        let count = ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..used]))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.memory -= count;
        let mut left = count;
        while left > 0 {
            match self.pieces.front_mut() {
                Some(Piece::Bytes(bytes)) if bytes.len() > left => {
                    bytes.advance(left);
                    left = 0;
                }
                Some(Piece::Bytes(bytes)) => {
                    left -= bytes.len();
                    self.pieces.pop_front();
                }
                Some(Piece::End) => {
                    self.pieces.pop_front();
                    self.frames -= 1;
                }
                Some(Piece::File { .. }) | None => break,
            }
        }
        Poll::Ready(Ok(count))
    }

    /// Moves the start of the file range at the front into memory.
    fn read_piece(&mut self) -> io::Result<()> {
        let Some(Piece::File { range, position, remaining }) = self.pieces.front_mut() else { return Ok(()) };
        let mut buffer = vec![0; (*remaining).min(READ_BYTES) as usize];
        let count = range.read_at(&mut buffer, *position)?;
        if count == 0 {
            return Err(short_file());
        }
        buffer.truncate(count);
        *position += count as u64;
        *remaining -= count as u64;
        self.memory += count;
        self.pieces.push_front(Piece::Bytes(Bytes::from(buffer)));
        Ok(())
    }
}

fn poll_sendfile(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    range: &impl FileRange,
    position: u64,
    remaining: u64,
) -> Poll<io::Result<usize>> {
    let Some(file) = range.as_fd() else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
    loop {
        ready!(stream.poll_write_ready(cx))?;
        let result = stream.try_io(Interest::WRITABLE, || {
            let mut from = position;
            let count = remaining.min(SENDFILE_BYTES) as usize;
            Ok(rustix::fs::sendfile(stream, file, Some(&mut from), count)?)
        });
        match result {
            Ok(0) => return Poll::Ready(Err(short_file())),
            Ok(count) => return Poll::Ready(Ok(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

fn short_file() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "file ends inside a range that was promised to a client")
}
