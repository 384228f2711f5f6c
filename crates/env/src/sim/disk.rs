//! A disk in memory that loses what was not synced, tears writes and fails on demand.
//!
//! The model is what POSIX promises, not what a kind file system does: a file's bytes are safe after the file was
//! synced, a name after its directory was. At a crash each unsynced 4 KiB page is kept, lost or torn at a 512-byte
//! sector; a length that grew ends anywhere between the synced and the current one; each directory keeps some prefix
//! of the changes made since it was synced. A rename within a directory is one change, as in every journalling
//! file system. A failed sync loses the pages it should have written: a later sync that succeeds does not cover them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel_model::Timestamp;

use super::Random;
use crate::disk::{DirEntry, Disk, DiskFile, Open, Space};

const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// ENOSPC and EIO, as Linux numbers them, so that callers see the same `ErrorKind`s as from a real disk.
const NO_SPACE: i32 = 28;
const INPUT_OUTPUT: i32 = 5;

/// A disk in memory. Clones are the same disk; see the module's description for what a crash does.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<State>>);

/// An open file of a [`SimDisk`]. After a crash of its disk every call on it fails.
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    node: usize,
    life: u64,
    writable: bool,
}

/// A lock on a [`SimDisk`]; a crash releases it too.
#[derive(Debug)]
pub struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Counts crashes: handles of an earlier life are dead.
    life: u64,
    now: Timestamp,
    nodes: BTreeMap<usize, Node>,
    next_node: usize,
    locks: BTreeSet<PathBuf>,
    // Faults.
    capacity: Option<u64>,
    operations: u64,
    fail_at: BTreeSet<u64>,
    halt_at: Option<u64>,
    failed_paths: BTreeSet<PathBuf>,
}

#[derive(Debug)]
enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Debug)]
struct FileNode {
    data: Vec<u8>,
    synced: Vec<u8>,
    /// Pages that differ from `synced` and that the next sync writes.
    dirty: BTreeSet<usize>,
    /// Pages that a failed sync gave up: their bytes are read back until a crash and then gone.
    given_up: BTreeSet<usize>,
    modified: Timestamp,
    path: PathBuf,
    /// Whether it has a name; one without takes no room, though whoever has it open reads on.
    named: bool,
}

#[derive(Debug, Default)]
struct DirNode {
    names: BTreeMap<String, usize>,
    synced: BTreeMap<String, usize>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}

impl DirNode {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }
}

impl SimDisk {
    /// An empty disk without faults; `seed` decides what crashes keep.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let root = Node::Dir(DirNode::default());
        Self(Arc::new(Mutex::new(State {
            random: Random(seed),
            life: 0,
            now: Timestamp(0),
            nodes: BTreeMap::from([(0, root)]),
            next_node: 1,
            locks: BTreeSet::new(),
            capacity: None,
            operations: 0,
            fail_at: BTreeSet::new(),
            halt_at: None,
            failed_paths: BTreeSet::new(),
        })))
    }

    /// The time that files written from now on are marked with.
    pub fn set_now(&self, now: Timestamp) {
        self.state().now = now;
    }

    /// The power goes: unsynced bytes and names are kept, lost or torn as the seed has it; faults set by
    /// [`fail_after`](Self::fail_after) and [`halt_after`](Self::halt_after) are over; open files and locks are dead.
    pub fn crash(&self) {
        self.state().crash(false);
    }

    /// The power goes, and everything that was not synced is lost.
    pub fn crash_losing_all(&self) {
        self.state().crash(true);
    }

    /// The process dies but the machine lives: open files and locks are dead, every byte written stays.
    pub fn kill(&self) {
        let mut state = self.state();
        state.life += 1;
        state.locks.clear();
        state.halt_at = None;
        state.fail_at.clear();
    }

    /// Lets the disk hold at most `bytes` of file content; a write beyond is cut short and answered with ENOSPC.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// The bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// How many changing operations (create, write, cut, sync, rename, remove) were asked for so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The changing operation after `skip` more fails once with EIO.
    pub fn fail_after(&self, skip: u64) {
        let mut state = self.state();
        let at = state.operations + skip;
        state.fail_at.insert(at);
    }

    /// After `skip` more changing operations every one fails with EIO, until a crash: how a test stops a process
    /// at each of its steps.
    pub fn halt_after(&self, skip: u64) {
        let mut state = self.state();
        state.halt_at = Some(state.operations + skip);
    }

    /// Every call below `path` fails with EIO, until [`heal`](Self::heal): a broken drive.
    pub fn fail_path(&self, path: &Path) {
        self.state().failed_paths.insert(path.to_owned());
    }

    /// Ends all faults that were set; the capacity stays.
    pub fn heal(&self) {
        let mut state = self.state();
        state.failed_paths.clear();
        state.fail_at.clear();
        state.halt_at = None;
    }

    /// Flips the bits of `mask` in one byte, on the medium and in memory: bit rot.
    pub fn rot(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut state = self.state();
        let node = state.resolve(path)?;
        let file = state.file_mut(node)?;
        let at = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        *file.data.get_mut(at).ok_or(io::ErrorKind::UnexpectedEof)? ^= mask;
        if let Some(byte) = file.synced.get_mut(at) {
            *byte ^= mask;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn used(&self) -> u64 {
        self.nodes
            .values()
            .map(|node| match node {
                Node::File(file) if file.named => file.data.len() as u64,
                Node::File(_) | Node::Dir(_) => 0,
            })
            .sum()
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        if self.failed_paths.iter().any(|failed| path.starts_with(failed)) {
            return Err(io::Error::from_raw_os_error(INPUT_OUTPUT));
        }
        Ok(())
    }

    /// Counts a changing operation and lets it fail if a fault says so.
    fn change(&mut self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        let at = self.operations;
        self.operations += 1;
        if self.fail_at.remove(&at) || self.halt_at.is_some_and(|halt| at >= halt) {
            return Err(io::Error::from_raw_os_error(INPUT_OUTPUT));
        }
        Ok(())
    }

    fn dir(&self, node: usize) -> io::Result<&DirNode> {
        match self.nodes.get(&node) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn dir_mut(&mut self, node: usize) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&node) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn file(&self, node: usize) -> io::Result<&FileNode> {
        match self.nodes.get(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn file_mut(&mut self, node: usize) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn resolve(&self, path: &Path) -> io::Result<usize> {
        let mut at = 0;
        for name in names(path)? {
            at = *self.dir(at)?.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    /// The directory that holds `path`'s last name, and that name.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(usize, &'p str)> {
        let mut all = names(path)?;
        let name = all.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let mut at = 0;
        for name in all {
            at = *self.dir(at)?.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        self.dir(at)?;
        Ok((at, name))
    }

    /// Marks a file, or all below a directory, as nameless.
    fn forget_name(&mut self, node: usize) {
        let mut waiting = vec![node];
        while let Some(id) = waiting.pop() {
            match self.nodes.get_mut(&id) {
                Some(Node::File(file)) => file.named = false,
                Some(Node::Dir(dir)) => waiting.extend(dir.names.values()),
                None => {}
            }
        }
    }

    fn add(&mut self, node: Node) -> usize {
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        id
    }

    fn write(&mut self, node: usize, mut at: usize, mut bytes: &[u8]) -> io::Result<()> {
        let now = self.now;
        let room = self.capacity.map(|capacity| capacity.saturating_sub(self.used()));
        let file = self.file_mut(node)?;
        let mut short = false;
        if let Some(room) = room {
            let fits = file.data.len().saturating_add(usize::try_from(room).unwrap_or(usize::MAX));
            let end = at + bytes.len();
            if end > fits {
                bytes = &bytes[..fits.saturating_sub(at).min(bytes.len())];
                short = true;
            }
        }
        if !bytes.is_empty() {
            if file.data.len() < at + bytes.len() {
                let from = file.data.len() / PAGE;
                file.data.resize(at + bytes.len(), 0);
                file.dirty.extend(from..=(at / PAGE));
            }
            file.data[at..at + bytes.len()].copy_from_slice(bytes);
            let end = at + bytes.len();
            while at < end {
                file.dirty.insert(at / PAGE);
                file.given_up.remove(&(at / PAGE));
                at = (at / PAGE + 1) * PAGE;
            }
            file.modified = now;
        }
        if short { Err(io::Error::from_raw_os_error(NO_SPACE)) } else { Ok(()) }
    }

    fn sync(&mut self, node: usize) -> io::Result<()> {
        let path = self.file(node)?.path.clone();
        if let Err(cause) = self.change(&path) {
            let file = self.file_mut(node)?;
            let lost = std::mem::take(&mut file.dirty);
            file.given_up.extend(lost);
            return Err(cause);
        }
        let file = self.file_mut(node)?;
        file.synced.resize(file.data.len(), 0);
        for page in std::mem::take(&mut file.dirty) {
            let (from, to) = page_range(page, file.data.len());
            file.synced[from..to].copy_from_slice(&file.data[from..to]);
        }
        Ok(())
    }

    fn crash(&mut self, lose_all: bool) {
        self.life += 1;
        self.locks.clear();
        self.halt_at = None;
        self.fail_at.clear();
        let random = &mut self.random;
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.crash(random, lose_all),
                Node::Dir(dir) => {
                    let keep = if lose_all { 0 } else { random.below(dir.changes.len() as u64 + 1) };
                    let mut names = dir.synced.clone();
                    for change in dir.changes.iter().take(usize::try_from(keep).unwrap_or(0)) {
                        change.apply(&mut names);
                    }
                    *dir = DirNode { synced: names.clone(), names, changes: Vec::new() };
                }
            }
        }
        self.forget_unreachable();
    }

    /// Drops nodes that no name leads to; called when no handle can be alive.
    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![(0_usize, PathBuf::from("/"))];
        while let Some((id, path)) = waiting.pop() {
            if !reached.insert(id) {
                continue;
            }
            match self.nodes.get_mut(&id) {
                Some(Node::Dir(dir)) => {
                    // A name whose node vanished can't be: nodes are only dropped here.
                    waiting.extend(dir.names.iter().map(|(name, node)| (*node, path.join(name))));
                }
                Some(Node::File(file)) => (file.path, file.named) = (path, true),
                None => {}
            }
        }
        self.nodes.retain(|id, _| reached.contains(id));
    }
}

impl FileNode {
    fn new(path: &Path, modified: Timestamp) -> Self {
        Self {
            data: Vec::new(),
            synced: Vec::new(),
            dirty: BTreeSet::new(),
            given_up: BTreeSet::new(),
            modified,
            path: path.to_owned(),
            named: true,
        }
    }

    fn crash(&mut self, random: &mut Random, lose_all: bool) {
        let mut after = self.synced.clone();
        if !lose_all {
            let (short, long) =
                (self.synced.len().min(self.data.len()), self.synced.len().max(self.data.len()));
            let len = match random.below(3) {
                0 => self.synced.len(),
                1 => self.data.len(),
                _ => short + usize::try_from(random.below((long - short) as u64 + 1)).unwrap_or(0),
            };
            after.resize(len, 0);
            for &page in &self.dirty {
                let kept = random.below(4);
                let (from, to) = page_range(page, len.min(self.data.len()));
                let mut at = from;
                while at < to {
                    let end = (at + SECTOR).min(to);
                    // Of each page: lost, kept, or torn sector by sector.
                    if kept == 1 || kept == 2 || (kept == 3 && random.below(2) == 0) {
                        after[at..end].copy_from_slice(&self.data[at..end]);
                    }
                    at = end;
                }
            }
        }
        self.data.clone_from(&after);
        self.synced = after;
        self.dirty.clear();
        self.given_up.clear();
    }
}

fn page_range(page: usize, len: usize) -> (usize, usize) {
    ((page * PAGE).min(len), ((page + 1) * PAGE).min(len))
}

/// The names of an absolute path; relative ones are taken from the root.
fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut found = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => found.push(name.to_str().ok_or(io::ErrorKind::InvalidInput)?),
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(found)
}

impl SimFile {
    fn alive<'s>(&self, state: &'s State) -> io::Result<&'s FileNode> {
        if state.life != self.life {
            return Err(io::Error::other("the simulated process that opened this file is dead"));
        }
        let file = state.file(self.node)?;
        state.check(&file.path)?;
        Ok(file)
    }

    fn changing(&self, state: &mut State) -> io::Result<()> {
        let path = self.alive(state)?.path.clone();
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.change(&path)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state();
        let data = &self.alive(&state)?.data;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        let count = buffer.len().min(data.len() - from);
        buffer[..count].copy_from_slice(&data[from..from + count]);
        Ok(count)
    }

    fn write_all_vectored_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let mut at = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        if let Err(cause) = self.changing(&mut state) {
            // A write that fails may have written some of its bytes, and the caller must cope with that.
            if self.writable
                && state.life == self.life
                && state.halt_at.is_none()
                && let Some(first) = parts.iter().find(|part| !part.is_empty())
            {
                let some = usize::try_from(state.random.below(first.len() as u64)).unwrap_or(0);
                let _ = state.write(self.node, at, &first[..some]);
            }
            return Err(cause);
        }
        for part in parts {
            state.write(self.node, at, part)?;
            at += part.len();
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        self.changing(&mut state)?;
        let now = state.now;
        let room = state.capacity.map(|capacity| capacity.saturating_sub(state.used()));
        let file = state.file_mut(self.node)?;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let old = file.data.len();
        if len > old {
            if room.is_some_and(|room| (len - old) as u64 > room) {
                return Err(io::Error::from_raw_os_error(NO_SPACE));
            }
            file.dirty.extend(old / PAGE..=(len - 1) / PAGE);
        }
        file.data.resize(len, 0);
        file.dirty = file.dirty.iter().copied().filter(|page| page * PAGE < len).collect();
        if len < old && len % PAGE != 0 {
            file.dirty.insert(len / PAGE);
        }
        file.modified = now;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.disk.state();
        Ok(self.alive(&state)?.data.len() as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        self.alive(&state)?;
        state.sync(self.node)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn modified(&self) -> io::Result<Timestamp> {
        let state = self.disk.state();
        Ok(self.alive(&state)?.modified)
    }

    fn set_modified(&self, time: Timestamp) -> io::Result<()> {
        let mut state = self.disk.state();
        self.changing(&mut state)?;
        state.file_mut(self.node)?.modified = time;
        Ok(())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Disk for SimDisk {
    type File = SimFile;
    type Lock = SimLock;

    fn open(&self, path: &Path, how: Open) -> io::Result<SimFile> {
        let mut state = self.state();
        state.check(path)?;
        let (parent, name) = state.parent(path)?;
        let found = state.dir(parent)?.names.get(name).copied();
        let node = match (found, how) {
            (None, Open::Read | Open::Write) => return Err(io::ErrorKind::NotFound.into()),
            (Some(_), Open::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(node), Open::Read | Open::Write | Open::Create) => {
                state.file(node)?;
                node
            }
            (Some(node), Open::Truncate) => {
                state.change(path)?;
                let now = state.now;
                let file = state.file_mut(node)?;
                file.data.clear();
                file.dirty.clear();
                file.modified = now;
                node
            }
            (None, Open::Create | Open::CreateNew | Open::Truncate) => {
                state.change(path)?;
                let file = FileNode::new(path, state.now);
                let node = state.add(Node::File(file));
                state.dir_mut(parent)?.change(Change::Link(name.to_owned(), node));
                node
            }
        };
        Ok(SimFile { disk: self.clone(), node, life: state.life, writable: how != Open::Read })
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.check(path)?;
        let mut at = 0;
        for name in names(path)? {
            at = match state.dir(at)?.names.get(name) {
                Some(&node) => node,
                None => {
                    state.change(path)?;
                    let node = state.add(Node::Dir(DirNode::default()));
                    state.dir_mut(at)?.change(Change::Link(name.to_owned(), node));
                    node
                }
            };
        }
        state.dir(at).map(|_| ())
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let state = self.state();
        state.check(path)?;
        let dir = state.dir(state.resolve(path)?)?;
        Ok(dir
            .names
            .iter()
            .map(|(name, node)| DirEntry {
                name: name.clone(),
                is_dir: matches!(state.nodes.get(node), Some(Node::Dir(_))),
            })
            .collect())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.resolve(path)?;
        state.file(node)?;
        state.change(path)?;
        let (parent, name) = state.parent(path)?;
        state.dir_mut(parent)?.change(Change::Unlink(name.to_owned()));
        state.forget_name(node);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.resolve(path)?;
        state.dir(node)?;
        state.change(path)?;
        let (parent, name) = state.parent(path)?;
        state.dir_mut(parent)?.change(Change::Unlink(name.to_owned()));
        state.forget_name(node);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.resolve(from)?;
        state.change(from)?;
        let (from_parent, from_name) = state.parent(from)?;
        let (to_parent, to_name) = state.parent(to)?;
        if from_parent != to_parent {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        let replaced = state.dir(to_parent)?.names.get(to_name).copied();
        state.dir_mut(from_parent)?.change(Change::Rename(from_name.to_owned(), to_name.to_owned()));
        if let Some(replaced) = replaced.filter(|replaced| *replaced != node) {
            state.forget_name(replaced);
        }
        // Faults are set by path, so files must know their new one.
        let mut waiting = vec![(node, to.to_owned())];
        while let Some((id, path)) = waiting.pop() {
            match state.nodes.get_mut(&id) {
                Some(Node::File(file)) => file.path = path,
                Some(Node::Dir(dir)) => {
                    waiting.extend(dir.names.iter().map(|(name, id)| (*id, path.join(name))))
                }
                None => {}
            }
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.resolve(path)?;
        state.change(path)?;
        let dir = state.dir_mut(node)?;
        dir.synced.clone_from(&dir.names);
        dir.changes.clear();
        Ok(())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let state = self.state();
        state.check(path)?;
        let total = state.capacity.unwrap_or(u64::MAX / 2);
        Ok(Space { total, free: total.saturating_sub(state.used()) })
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<SimLock>> {
        let file = self.open(path, Open::Create)?;
        let mut state = self.state();
        if !state.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(SimLock { disk: self.clone(), path: path.to_owned(), life: file.life }))
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        let state = self.state();
        state.check(path)?;
        Ok(state.file(state.resolve(path)?)?.data.len() as u64)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
        disk.read(Path::new(path), u64::MAX).ok()
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may_not() {
        let (mut lost, mut kept) = (false, false);
        for seed in 0..64 {
            let disk = SimDisk::new(seed);
            disk.create_dir_all(Path::new("/d")).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            let file = disk.open(Path::new("/d/f"), Open::CreateNew).unwrap();
            file.write_all_at(b"safe", 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/d")).unwrap();
            file.write_all_at(b"risky", 4).unwrap();
            disk.open(Path::new("/d/unsynced"), Open::CreateNew).unwrap();
            disk.crash();
            let found = content(&disk, "/d/f").unwrap();
            assert_eq!(&found[..4], b"safe");
            lost |= found.len() < 9 || !found.ends_with(b"risky");
            kept |= found.ends_with(b"risky");
            assert!(file.len().is_err(), "a handle outlived the crash");
        }
        assert!(lost && kept);
    }

    #[test]
    fn losing_all_keeps_exactly_what_was_synced() {
        let disk = SimDisk::new(1);
        disk.write_atomic(Path::new("/a"), b"one").unwrap();
        let file = disk.open(Path::new("/a"), Open::Write).unwrap();
        file.write_all_at(b"two", 0).unwrap();
        disk.open(Path::new("/b"), Open::CreateNew).unwrap();
        disk.crash_losing_all();
        assert_eq!(content(&disk, "/a").unwrap(), b"one");
        assert_eq!(content(&disk, "/b"), None);
    }

    #[test]
    fn atomic_writes_are_atomic_at_every_step() {
        for seed in 0..8 {
            for step in 0..8 {
                let disk = SimDisk::new(seed);
                disk.write_atomic(Path::new("/c"), b"old").unwrap();
                disk.halt_after(step);
                let written = disk.write_atomic(Path::new("/c"), b"newer");
                disk.crash();
                let found = content(&disk, "/c").unwrap();
                match written {
                    Ok(()) => assert_eq!(found, b"newer"),
                    Err(_) => assert!(found == b"old" || found == b"newer"),
                }
            }
        }
    }

    #[test]
    fn a_full_disk_writes_what_fits_and_says_so() {
        let disk = SimDisk::new(1);
        disk.set_capacity(Some(10));
        let file = disk.open(Path::new("/f"), Open::CreateNew).unwrap();
        file.write_all_at(&[1; 8], 0).unwrap();
        let refused = file.write_all_at(&[2; 8], 8).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().unwrap(), 10);
        file.set_len(8).unwrap();
        assert_eq!(disk.space(Path::new("/")).unwrap().free, 2);
        disk.set_capacity(None);
        file.write_all_at(&[2; 8], 8).unwrap();
    }

    #[test]
    fn a_failed_sync_loses_its_pages_for_good() {
        let disk = SimDisk::new(1);
        let file = disk.open(Path::new("/f"), Open::CreateNew).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        disk.fail_after(0);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.crash_losing_all();
        assert_ne!(content(&disk, "/f").unwrap(), b"bytes");
    }

    #[test]
    fn a_broken_drive_fails_only_below_its_path() {
        let disk = SimDisk::new(1);
        disk.create_dir_all(Path::new("/a")).unwrap();
        disk.create_dir_all(Path::new("/b")).unwrap();
        let file = disk.open(Path::new("/a/f"), Open::Create).unwrap();
        disk.fail_path(Path::new("/a"));
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.len().is_err());
        assert!(disk.open(Path::new("/a/g"), Open::Create).is_err());
        assert!(disk.open(Path::new("/b/g"), Open::Create).is_ok());
        disk.heal();
        assert!(file.write_all_at(b"x", 0).is_ok());
    }

    #[test]
    fn a_crash_frees_locks_and_killing_keeps_bytes() {
        let disk = SimDisk::new(1);
        let lock = disk.try_lock(Path::new("/.lock")).unwrap();
        assert!(lock.is_some());
        assert!(disk.try_lock(Path::new("/.lock")).unwrap().is_none());
        let file = disk.open(Path::new("/f"), Open::Create).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        disk.kill();
        assert_eq!(content(&disk, "/f").unwrap(), b"x");
        let again = disk.try_lock(Path::new("/.lock")).unwrap();
        assert!(again.is_some());
        drop(lock);
        assert!(
            disk.try_lock(Path::new("/.lock")).unwrap().is_none(),
            "a dead process unlocked a living one"
        );
        drop(again);
    }
}
