//! Durability: what must be synced, without holding the log while it is.

use std::{path::PathBuf, sync::Arc};

use semel_env::{Disk, DiskFile};
use semel_model::Offset;

use crate::{
    error::{Doing, StorageError},
    partition::PartitionLog,
};

/// A closed segment whose bytes may not be on stable storage.
#[derive(Debug)]
pub(crate) struct Unsynced<D: Disk> {
    pub end_offset: Offset,
    pub file: Arc<D::File>,
    pub txn: Option<Arc<D::File>>,
}

/// All that must be synced for the log to be safe up to an offset. Taken under the log's lock, synced without it.
#[derive(Debug)]
#[must_use = "nothing is synced before `sync`"]
pub struct FlushTicket<D: Disk> {
    files: Vec<Arc<D::File>>,
    disk: D,
    dir: PathBuf,
    sync_dir: bool,
    upto: Offset,
    dir_changes: u64,
    truncations: u64,
    txn_count: u64,
    active_segment: Offset,
}

impl<D: Disk> FlushTicket<D> {
    /// Everything below is on stable storage once [`sync`](Self::sync) has returned `Ok` (exclusive end).
    #[must_use]
    pub fn upto(&self) -> Offset {
        self.upto
    }

    /// Syncs the files, and the directory if it has new ones.
    ///
    /// On an error the log must not be trusted to sync later: [`PartitionLog::mark_failed`], and its directory is failed.
    pub fn sync(&self) -> Result<(), StorageError> {
        for file in &self.files {
            file.sync_data().doing("sync a segment in", &self.dir)?;
        }
        if self.sync_dir {
            self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        }
        Ok(())
    }
}

impl<D: Disk> PartitionLog<D> {
    /// How many offsets are not known to be on stable storage.
    #[must_use]
    pub fn unflushed(&self) -> i64 {
        self.log_end_offset().since(self.flushed_end)
    }

    /// Whether a flush has anything to do.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        self.unflushed() > 0
            || self.active.txn_unsynced
            || !self.unsynced.is_empty()
            || self.dir_changes != self.dir_synced
    }

    /// What must be synced for all that was appended so far to be safe.
    pub fn flush_ticket(&self) -> FlushTicket<D> {
        let mut files = Vec::with_capacity(self.unsynced.len() + 2);
        for segment in &self.unsynced {
            files.push(Arc::clone(&segment.file));
            files.extend(segment.txn.clone());
        }
        if self.log_end_offset() > self.flushed_end {
            files.push(Arc::clone(&self.active.file));
        }
        if self.active.txn_unsynced {
            files.extend(self.active.txn.shared_file());
        }
        FlushTicket {
            files,
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            sync_dir: self.dir_changes != self.dir_synced,
            upto: self.log_end_offset(),
            dir_changes: self.dir_changes,
            truncations: self.truncations,
            txn_count: self.active.txn.count(),
            active_segment: self.active.base_offset,
        }
    }

    /// Takes note of a ticket that was synced. If the log was truncated meanwhile it says nothing.
    pub fn flushed(&mut self, ticket: &FlushTicket<D>) {
        if ticket.truncations != self.truncations {
            return;
        }
        self.flushed_end = self.flushed_end.max(ticket.upto);
        self.forget_truncation();
        self.dir_synced = self.dir_synced.max(ticket.dir_changes);
        if ticket.active_segment == self.active.base_offset && ticket.txn_count == self.active.txn.count() {
            self.active.txn_unsynced = false;
        }
        // Segments that were closed when the ticket was taken are covered in whole; one closed since may have got more.
        self.unsynced.retain(|segment| segment.end_offset > ticket.active_segment);
    }

    /// Takes a ticket, syncs it and takes note: for whoever need not let others append meanwhile.
    ///
    /// On an error the log refuses everything from then on.
    pub fn flush(&mut self) -> Result<(), StorageError> {
        if !self.needs_flush() {
            return Ok(());
        }
        let ticket = self.flush_ticket();
        match ticket.sync() {
            Ok(()) => {
                self.flushed(&ticket);
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }
}
