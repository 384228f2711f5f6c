//! What a file system must do for Semel.

use std::{
    fmt,
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    path::Path,
};

use semel_model::Timestamp;

/// How [`Disk::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, to be read only.
    Read,
    /// An existing file, to be read and written.
    Write,
    /// For reading and writing; made if it is missing, kept as it is if it is there.
    Create,
    /// For reading and writing; must not exist yet.
    CreateNew,
    /// For reading and writing; made if it is missing, emptied if it is there.
    Truncate,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The last component of the path. Names that are not UTF-8 are not listed: Semel writes none.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Room on the file system that holds a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What this process may still write.
    pub free: u64,
}

/// An open file: positional access only, so that it can be shared between threads without a cursor.
///
/// Every method retries a call that a signal interrupted, and nothing else.
pub trait DiskFile: fmt::Debug + Send + Sync + 'static {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at or after the end. May read less than there is.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `parts`, one after the other, from `offset` on, without copying them; grows the file as needed.
    ///
    /// On an error any prefix may have been written. `parts` is used up: its slices are advanced.
    fn write_all_vectored_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Cuts the file or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Sets room aside for `len` bytes from `offset` on without changing the file's length or content, so that writing
    /// there need not look for any: a sync of a file that grows by megabytes is several times faster then. Cutting the
    /// file ([`set_len`](Self::set_len), also to the length it has) gives back what was not used.
    ///
    /// A hint: a file system that can't does nothing.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Brings the bytes, and the length needed to read them back, to stable storage (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// As [`sync_data`](Self::sync_data), and all of the file's metadata (`fsync`).
    fn sync_all(&self) -> io::Result<()>;

    /// When the bytes last changed.
    fn modified(&self) -> io::Result<Timestamp>;

    /// Makes the file look as if its bytes last changed at `time`.
    fn set_modified(&self, time: Timestamp) -> io::Result<()>;

    /// The descriptor, for `sendfile`; a simulated file has none.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Fills `buffer` from `offset` on; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    offset += read as u64;
                    buffer = &mut buffer[read..];
                }
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_vectored_at(&mut [IoSlice::new(bytes)], offset)
    }
}

/// A file system. Cheap to clone; clones are the same disk.
pub trait Disk: fmt::Debug + Clone + Send + Sync + 'static {
    /// Its files.
    type File: DiskFile;
    /// Held as long as the lock is; dropping it unlocks.
    type Lock: fmt::Debug + Send + Sync + 'static;

    /// Opens a file. The name of a new file survives a crash only after [`sync_dir`](Self::sync_dir) of its directory.
    fn open(&self, path: &Path, how: Open) -> io::Result<Self::File>;

    /// Makes a directory and those above it; no error if it is there.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// What a directory holds, in the order of the names.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Removes a file's name. Whoever has it open can go on reading.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Gives a file or directory another name in the same directory, in one step; a file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Brings the names in a directory to stable storage.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Room on the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Locks a file (made if missing) against other processes and other calls; `None` if somebody holds it.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Self::Lock>>;

    /// The length of the file at `path`, without opening it.
    fn file_len(&self, path: &Path) -> io::Result<u64>;

    /// Reads a whole file. [`io::ErrorKind::InvalidData`] if it is larger than `max_bytes` (inclusive bound).
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path, Open::Read)?;
        let len = file.len()?;
        if len > max_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("file of {len} bytes is larger than the {max_bytes} allowed"),
            ));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Replaces a file's content in one step: after a crash it holds the old bytes or the new ones, and after `Ok`
    /// the new ones. Writes `<path>.tmp` first.
    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = Path::new(&temporary);
        let written = (|| {
            let file = self.open(temporary, Open::Truncate)?;
            file.write_all_at(bytes, 0)?;
            file.sync_all()?;
            drop(file);
            self.rename(temporary, path)?;
            match path.parent() {
                Some(parent) if parent.as_os_str().is_empty() => self.sync_dir(Path::new(".")),
                Some(parent) => self.sync_dir(parent),
                None => Ok(()),
            }
        })();
        if written.is_err() {
            // Best effort: on a full disk the half-written file is room we need back.
            let _ = self.remove_file(temporary);
        }
        written
    }
}
