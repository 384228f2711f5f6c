//! raft-rs's view of a [`LogStore`].

use std::{cell::RefCell, collections::VecDeque};

use bytes::Bytes;
use raft::{GetEntriesContext, RaftState, Storage, StorageError, eraftpb as pb};

use crate::{
    log_store::{Batch, Key, LogStore},
    node::NodeError,
};

/// The stored log with what raft-rs asks for at every step kept in memory: indexes, terms, the hard state.
pub(crate) struct RaftLog<S> {
    store: S,
    hard_state: pb::HardState,
    conf_state: pb::ConfState,
    /// The index and term before the first entry.
    truncated: (u64, u64),
    /// Of the entries after `truncated`, one each.
    terms: VecDeque<u64>,
    /// The index and term of the stored snapshot.
    snapshot: (u64, u64),
    /// Bytes of entries appended since the snapshot.
    bytes_since_snapshot: u64,
    /// A read that failed within raft-rs, which would panic if it were told: the node asks for it and stops.
    failure: RefCell<Option<NodeError>>,
}

/// How many bytes of entries are read at once when a node starts.
const LOAD_BYTES: u64 = 1 << 20;

impl<S: LogStore> RaftLog<S> {
    /// Opens what is stored, or begins a log for `voters`.
    ///
    /// Also answers the stored snapshot's data, from which the state starts; the entries after it follow as
    /// committed when raft-rs finds them so.
    pub(crate) fn open(mut store: S, voters: &[u64]) -> Result<(Self, Option<Bytes>), NodeError> {
        let Some(conf_state) = read(&store, Key::ConfState)? else {
            let mut conf_state = pb::ConfState::default();
            conf_state.set_voters(voters.to_vec());
            let batch = Batch {
                remove: Vec::new(),
                put: vec![
                    (Key::ConfState, encoded(&conf_state)?),
                    (Key::HardState, encoded(&pb::HardState::default())?),
                    (Key::Truncated, pair_bytes((0, 0))),
                ],
                sync: true,
            };
            store.write(batch).map_err(|cause| NodeError::store("begin the log", cause))?;
            let log = Self {
                store,
                hard_state: pb::HardState::default(),
                conf_state,
                truncated: (0, 0),
                terms: VecDeque::new(),
                snapshot: (0, 0),
                bytes_since_snapshot: 0,
                failure: RefCell::new(None),
            };
            return Ok((log, None));
        };
        let conf_state: pb::ConfState = decoded(&conf_state)?;
        if conf_state.get_voters() != voters {
            return Err(NodeError::VotersChanged {
                stored: conf_state.get_voters().to_vec(),
                configured: voters.to_vec(),
            });
        }
        let hard_state = decoded(&required(&store, Key::HardState)?)?;
        let truncated = pair(&required(&store, Key::Truncated)?)?;
        let snapshot: Option<pb::Snapshot> =
            read(&store, Key::Snapshot)?.map(|bytes| decoded(&bytes)).transpose()?;
        let snapshot_at = snapshot
            .as_ref()
            .map_or((0, 0), |snapshot| (snapshot.get_metadata().index, snapshot.get_metadata().term));
        let mut log = Self {
            store,
            hard_state,
            conf_state,
            truncated,
            terms: VecDeque::new(),
            snapshot: snapshot_at,
            bytes_since_snapshot: 0,
            failure: RefCell::new(None),
        };
        log.load_terms()?;
        if log.snapshot.0 < log.truncated.0 || log.hard_state.commit < log.snapshot.0 {
            return Err(NodeError::Corrupt("a snapshot that does not fit the log"));
        }
        if log.last() < log.hard_state.commit {
            return Err(NodeError::Corrupt("the log ends before its commit index"));
        }
        let data = snapshot.map(|mut snapshot| snapshot.take_data());
        Ok((log, data))
    }

    fn load_terms(&mut self) -> Result<(), NodeError> {
        loop {
            let next = self.last() + 1;
            let entries = self
                .store
                .entries(next..u64::MAX, LOAD_BYTES)
                .map_err(|cause| NodeError::store("read the log", cause))?;
            if entries.is_empty() {
                return Ok(());
            }
            for (index, bytes) in entries {
                let entry: pb::Entry = decoded(&bytes)?;
                if index != self.last() + 1 || entry.index != index {
                    return Err(NodeError::Corrupt("a hole in the log"));
                }
                self.terms.push_back(entry.term);
                if index > self.snapshot.0 {
                    self.bytes_since_snapshot += bytes.len() as u64;
                }
            }
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.truncated.0 + self.terms.len() as u64
    }

    pub(crate) fn first(&self) -> u64 {
        self.truncated.0 + 1
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot.0
    }

    pub(crate) fn bytes_since_snapshot(&self) -> u64 {
        self.bytes_since_snapshot
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        let at = index.checked_sub(self.truncated.0 + 1)?;
        self.terms.get(usize::try_from(at).ok()?).copied()
    }

    /// Keeps what a `Ready` brought: a snapshot, entries, the hard state; all in one batch.
    pub(crate) fn persist(
        &mut self,
        snapshot: &pb::Snapshot,
        entries: &[pb::Entry],
        hard_state: Option<&pb::HardState>,
        sync: bool,
    ) -> Result<(), NodeError> {
        let mut batch = Batch { sync, ..Batch::default() };
        let has_snapshot = !snapshot.is_empty();
        if let Some(hard_state) = hard_state {
            let commit = self.hard_state.commit;
            self.hard_state = hard_state.clone();
            self.hard_state.commit = hard_state.commit.max(commit);
        }
        if has_snapshot {
            let meta = snapshot.get_metadata();
            batch.remove.push(self.first()..self.last() + 1);
            self.truncated = (meta.index, meta.term);
            self.snapshot = self.truncated;
            self.terms.clear();
            self.bytes_since_snapshot = 0;
            self.hard_state.commit = self.hard_state.commit.max(meta.index);
            self.hard_state.term = self.hard_state.term.max(meta.term);
            batch.put.push((Key::Truncated, pair_bytes(self.truncated)));
            batch.put.push((Key::Snapshot, encoded(snapshot)?));
        }
        if let Some(first) = entries.first() {
            if first.index <= self.truncated.0 || first.index > self.last() + 1 {
                return Err(NodeError::Corrupt("raft appends past the end of the log"));
            }
            // A conflicting tail must go, or it comes back after a restart.
            if first.index <= self.last() {
                batch.remove.push(first.index..self.last() + 1);
                let kept = usize::try_from(first.index - self.first()).unwrap_or(0);
                self.terms.truncate(kept);
            }
            for entry in entries {
                let bytes = encoded(entry)?;
                self.bytes_since_snapshot += bytes.len() as u64;
                self.terms.push_back(entry.term);
                batch.put.push((Key::Entry(entry.index), bytes));
            }
        }
        if hard_state.is_some() || has_snapshot {
            batch.put.push((Key::HardState, encoded(&self.hard_state)?));
        }
        if batch.put.is_empty() && !sync {
            return Ok(());
        }
        self.store.write(batch).map_err(|cause| NodeError::store("append to the log", cause))
    }

    /// Notes a commit index that raft-rs tells of outside the hard state; it is stored with the next batch.
    pub(crate) fn note_commit(&mut self, commit: u64) {
        self.hard_state.commit = self.hard_state.commit.max(commit);
    }

    /// Keeps a snapshot of the state at `index` and drops the entries that lie more than `keep` before it.
    pub(crate) fn compact(&mut self, index: u64, data: Bytes, keep: u64) -> Result<(), NodeError> {
        let term = self.term_at(index).ok_or(NodeError::Corrupt("a snapshot outside the log"))?;
        let mut snapshot = pb::Snapshot::default();
        snapshot.set_data(data);
        snapshot.mut_metadata().set_conf_state(self.conf_state.clone());
        snapshot.mut_metadata().index = index;
        snapshot.mut_metadata().term = term;
        let cut = index.saturating_sub(keep).max(self.truncated.0);
        let cut_term = self.term_at(cut).ok_or(NodeError::Corrupt("a snapshot outside the log"))?;
        // What is applied is committed, though the stored commit index may lag; a log that starts after its
        // commit index could not be opened again.
        self.hard_state.commit = self.hard_state.commit.max(index);
        let mut batch = Batch { sync: true, ..Batch::default() };
        batch.remove.push(self.first()..cut + 1);
        batch.put.push((Key::Snapshot, encoded(&snapshot)?));
        batch.put.push((Key::Truncated, pair_bytes((cut, cut_term))));
        batch.put.push((Key::HardState, encoded(&self.hard_state)?));
        self.store.write(batch).map_err(|cause| NodeError::store("keep a snapshot", cause))?;
        let dropped = usize::try_from(cut - self.truncated.0).unwrap_or(0);
        self.terms.drain(..dropped);
        self.truncated = (cut, cut_term);
        self.snapshot = (index, term);
        self.bytes_since_snapshot = 0;
        Ok(())
    }

    /// A read that failed since this was last asked.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn fail(&self, error: NodeError) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    /// Entries from the store, decoded.
    pub(crate) fn read_entries(
        &self,
        low: u64,
        high: u64,
        bytes_max: u64,
    ) -> Result<Vec<pb::Entry>, NodeError> {
        let entries = self
            .store
            .entries(low..high, bytes_max)
            .map_err(|cause| NodeError::store("read the log", cause))?;
        entries.iter().map(|(_, bytes)| decoded(bytes)).collect()
    }
}

impl<S: LogStore> Storage for RaftLog<S> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<pb::Entry>> {
        if low < self.first() {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        // No entries is an answer raft-rs stands: it looks at how many it got.
        Ok(self.read_entries(low, high, max_size.into().unwrap_or(u64::MAX)).unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        }))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.truncated.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.term_at(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<pb::Snapshot> {
        let later = || raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        let stored =
            read(&self.store, Key::Snapshot).and_then(|bytes| bytes.map(|b| decoded(&b)).transpose());
        match stored {
            Ok(Some(snapshot)) if self.snapshot.0 >= request_index => Ok(snapshot),
            Ok(_) => Err(later()),
            Err(error) => {
                self.fail(error);
                Err(later())
            }
        }
    }
}

fn read<S: LogStore>(store: &S, key: Key) -> Result<Option<Bytes>, NodeError> {
    store.get(key).map_err(|cause| NodeError::store("read the log's state", cause))
}

fn required<S: LogStore>(store: &S, key: Key) -> Result<Bytes, NodeError> {
    read(store, key)?.ok_or(NodeError::Corrupt("a value is missing"))
}

pub(crate) fn encoded(message: &impl protobuf::Message) -> Result<Bytes, NodeError> {
    message.write_to_bytes().map(Bytes::from).map_err(NodeError::Encoding)
}

pub(crate) fn decoded<M: protobuf::Message + Default>(bytes: &[u8]) -> Result<M, NodeError> {
    let mut message = M::default();
    message.merge_from_bytes(bytes).map_err(NodeError::Encoding)?;
    Ok(message)
}

fn pair_bytes((index, term): (u64, u64)) -> Bytes {
    Bytes::from([index.to_be_bytes(), term.to_be_bytes()].concat())
}

fn pair(bytes: &[u8]) -> Result<(u64, u64), NodeError> {
    let part = |at: usize| -> Result<u64, NodeError> {
        let eight = bytes.get(at..at + 8).and_then(|slice| slice.try_into().ok());
        eight.map(u64::from_be_bytes).ok_or(NodeError::Corrupt("a value that is too short"))
    };
    Ok((part(0)?, part(8)?))
}
