//! What can go wrong, by operation.

use std::{
    io,
    path::{Path, PathBuf},
};

use semel_model::{LeaderEpoch, Offset};
use semel_record::BatchError;
use thiserror::Error;

/// The disk refused, or a file is not what it must be.
#[derive(Debug, Error)]
#[error("cannot {doing} {}", path.display())]
pub struct StorageError {
    /// What was being done: a verb that `path` completes.
    pub doing: &'static str,
    /// To which file or directory.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub cause: io::Error,
}

impl StorageError {
    pub(crate) fn new(doing: &'static str, path: &Path, cause: io::Error) -> Self {
        Self { doing, path: path.to_owned(), cause }
    }

    /// A file whose content makes no sense.
    pub(crate) fn invalid(doing: &'static str, path: &Path, why: impl Into<String>) -> Self {
        Self::new(doing, path, io::Error::new(io::ErrorKind::InvalidData, why.into()))
    }

    /// How far the trouble reaches.
    #[must_use]
    pub fn reach(&self) -> Reach {
        // Linux's numbers; `io::ErrorKind` has no names for them.
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const ENOMEM: i32 = 12;
        if self.is_disk_full() {
            return Reach::DiskFull;
        }
        match self.cause.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Reach::Log,
            io::ErrorKind::OutOfMemory => Reach::Operation,
            _ => match self.cause.raw_os_error() {
                Some(ENFILE | EMFILE | ENOMEM) => Reach::Operation,
                _ => Reach::Directory,
            },
        }
    }

    /// Whether there was no room: worth a retry once some is freed, unlike a broken drive.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        matches!(
            self.cause.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }
}

/// What a [`StorageError`] spoils.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This operation; the process was short of descriptors or memory, and the disk is not to blame.
    Operation,
    /// Appends, until there is room again.
    DiskFull,
    /// This log: a file of it is not what it must be. Others in the directory are as good as before.
    Log,
    /// Everything in the directory: the drive or its file system refuses.
    Directory,
}

/// Attaches what was being done to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, StorageError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, StorageError> {
        self.map_err(|cause| StorageError::new(doing, path, cause))
    }
}

/// Why an append was refused. Nothing of the batch is visible after any of these.
#[derive(Debug, Error)]
pub enum AppendError {
    /// The batch does not start where the log ends (on a follower: starts before it).
    #[error("batch at offset {found} does not follow the log's end {log_end_offset}")]
    Discontiguous {
        /// Where the log ends.
        log_end_offset: Offset,
        /// Where the batch starts.
        found: Offset,
    },
    /// The batch is of an older leadership than what stands in the log.
    #[error("batch of leader epoch {found} after epoch {latest}")]
    FencedLeaderEpoch {
        /// The log's latest.
        latest: LeaderEpoch,
        /// The batch's.
        found: LeaderEpoch,
    },
    /// The batch could not be put in any segment (`RECORD_LIST_TOO_LARGE`).
    #[error("batch of {size} bytes is larger than a segment of {segment_bytes}")]
    RecordListTooLarge {
        /// The batch's, in bytes.
        size: usize,
        /// The limit, inclusive.
        segment_bytes: u32,
    },
    /// The batch spans more offsets than a segment can.
    #[error("batch spans more offsets than a segment can hold")]
    OffsetSpanTooLarge,
    /// Bytes that a leader sent are not whole batches.
    #[error("not a whole record batch")]
    Corrupt(#[source] BatchError),
    /// An earlier failure left the log in a state that only opening it again can mend.
    #[error("log failed earlier and must be opened again")]
    LogFailed,
    /// The disk refused; see [`StorageError::is_disk_full`].
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a read or a look-up was refused.
#[derive(Debug, Error)]
pub enum ReadError {
    /// `OFFSET_OUT_OF_RANGE`.
    #[error("offset {offset} is outside of {log_start_offset}..={log_end_offset}")]
    OffsetOutOfRange {
        /// What was asked for.
        offset: Offset,
        /// The first offset there is.
        log_start_offset: Offset,
        /// The offset that the next record will get.
        log_end_offset: Offset,
    },
    /// `CORRUPT_MESSAGE`: the stored bytes of these offsets are damaged, and are never served.
    #[error("stored batches of offsets {from} to {to} (exclusive) are damaged")]
    Corrupt {
        /// The first damaged offset.
        from: Offset,
        /// The first one after that can be read again.
        to: Offset,
    },
    /// A stored batch can't be unpacked.
    #[error("stored batch at offset {offset} cannot be read")]
    Batch {
        /// Its base offset.
        offset: Offset,
        /// Why.
        #[source]
        cause: BatchError,
    },
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reaches_as_far_as_its_cause() {
        let reach = |cause: io::Error| StorageError::new("open", Path::new("x"), cause).reach();
        assert_eq!(reach(io::Error::from_raw_os_error(24)), Reach::Operation);
        assert_eq!(reach(io::ErrorKind::StorageFull.into()), Reach::DiskFull);
        assert_eq!(reach(io::ErrorKind::InvalidData.into()), Reach::Log);
        assert_eq!(reach(io::Error::from_raw_os_error(5)), Reach::Directory);
    }
}
