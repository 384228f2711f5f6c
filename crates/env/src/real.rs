//! The file system of the operating system.

use std::{
    fs::{self, File},
    io::{self, IoSlice},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use semel_model::Timestamp;

use crate::{
    clock::timestamp,
    disk::{DirEntry, Disk, DiskFile, Open, Space},
};

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// A file of the operating system.
#[derive(Debug)]
pub struct RealFile(File);

/// An advisory lock (`flock`) on a file, given back when it is dropped.
#[derive(Debug)]
pub struct RealLock(#[expect(dead_code, reason = "the lock lasts as long as the open file")] File);

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| self.0.read_at(buffer, offset))
    }

    fn write_all_vectored_at(&self, parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        // Drop leading empty parts, so that 0 written bytes can only mean a disk that takes no more.
        let mut parts = parts;
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match rustix::io::pwritev(&self.0, parts, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn modified(&self) -> io::Result<Timestamp> {
        Ok(timestamp(self.0.metadata()?.modified()?))
    }

    fn set_modified(&self, time: Timestamp) -> io::Result<()> {
        let since = Duration::from_millis(u64::try_from(time.get()).unwrap_or(0));
        self.0.set_modified(UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

impl Disk for RealDisk {
    type File = RealFile;
    type Lock = RealLock;

    fn open(&self, path: &Path, how: Open) -> io::Result<RealFile> {
        let mut options = File::options();
        options.read(true);
        match how {
            Open::Read => {}
            Open::Write => {
                options.write(true);
            }
            Open::Create => {
                options.write(true).create(true).truncate(false);
            }
            Open::CreateNew => {
                options.write(true).create_new(true);
            }
            Open::Truncate => {
                options.write(true).create(true).truncate(true);
            }
        }
        options.open(path).map(RealFile)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                // A log directory may be a link to another volume: what counts is what it leads to.
                let kind = entry.file_type()?;
                let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
                entries.push(DirEntry { name, is_dir });
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Space {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<RealLock>> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(RealLock(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(cause)) => Err(cause),
        }
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectored_writes_land_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealDisk.open(&folder.path().join("f"), Open::CreateNew).unwrap();
        file.write_all_vectored_at(&mut [IoSlice::new(b""), IoSlice::new(b"ab"), IoSlice::new(b"cde")], 3)
            .unwrap();
        assert_eq!(file.len().unwrap(), 8);
        let mut read = [9; 8];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"\0\0\0abcde");
        assert_eq!(file.read_at(&mut read, 8).unwrap(), 0);
        assert_eq!(file.read_exact_at(&mut read, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.set_modified(Timestamp(1_234_000)).unwrap();
        assert_eq!(file.modified().unwrap(), Timestamp(1_234_000));
        assert!(file.as_fd().is_some());
    }

    #[test]
    fn atomic_writes_replace_and_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        RealDisk.write_atomic(&path, b"one").unwrap();
        RealDisk.write_atomic(&path, b"two!").unwrap();
        assert_eq!(RealDisk.read(&path, 4).unwrap(), b"two!");
        assert_eq!(RealDisk.read(&path, 3).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let names = RealDisk.read_dir(folder.path()).unwrap();
        assert_eq!(names, [DirEntry { name: "checkpoint".into(), is_dir: false }]);
        assert!(RealDisk.space(folder.path()).unwrap().total > 0);
    }

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let held = RealDisk.try_lock(&path).unwrap();
        assert!(held.is_some());
        assert!(RealDisk.try_lock(&path).unwrap().is_none());
        drop(held);
        assert!(RealDisk.try_lock(&path).unwrap().is_some());
    }
}
