//! Writing the new segments.

use semel_env::{Disk, DiskFile, Open};
use semel_model::Offset;
use semel_record::{Batch, BatchHeader};

use super::{
    CleanError, CleanPlan, CleanStats, Group, Source,
    keep::{Keep, Kept, LastOfProducers, Transactions},
    map::OffsetMap,
};
use crate::{
    error::{Doing, StorageError},
    index,
    names::{self, CLEANED, INDEX, LOG, TIME_INDEX, TXN_INDEX},
    scan::{Headers, Indexed},
    txn_index::AbortedTransaction,
};

/// Written at once.
const BUFFER: usize = 1 << 20;

/// A segment that is being written.
struct Output<'a, D: Disk> {
    plan: &'a CleanPlan<D>,
    base_offset: Offset,
    file: D::File,
    buffer: Vec<u8>,
    flushed: u64,
    indexed: Indexed,
    aborted: Vec<AbortedTransaction>,
}

impl<D: Disk> CleanPlan<D> {
    /// Rewrites the segments up to `cleaned_to`, several small ones into one.
    pub(super) fn rewrite(
        &self,
        map: &OffsetMap,
        cleaned_to: Offset,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<Group>, CleanStats), CleanError> {
        let mut transactions = Transactions::new(self.aborted.clone());
        let producers = LastOfProducers::new(&self.request.producers);
        let keep = Keep {
            map,
            cleaned_to,
            producers: &producers,
            now: self.request.now,
            delete_retention_ms: self.config.delete_retention_ms,
            limits: self.limits(),
        };
        let mut stats = CleanStats::default();
        let mut groups = Vec::new();
        let mut rest: &[Source<D>] =
            &self.sources[..self.sources.partition_point(|s| s.base_offset < cleaned_to)];
        while !rest.is_empty() {
            let (group, later) = rest.split_at(self.group_size(rest));
            rest = later;
            groups.push(self.rewrite_group(group, &keep, &mut transactions, &mut stats, go_on)?);
        }
        Ok((groups, stats))
    }

    /// How many of the first segments make one new segment that keeps all limits, whatever stays of them.
    fn group_size(&self, sources: &[Source<D>]) -> usize {
        let mut size = 0_u64;
        let mut count = 0;
        for source in sources {
            size += u64::from(source.size);
            let span = source.end_offset.since(sources[0].base_offset);
            // An index has an entry for each interval at most, or for each batch if these are larger.
            let index = size / u64::from(self.config.index_interval_bytes.max(61)) * 12;
            let fits = size <= u64::from(self.config.segment_bytes)
                && index <= u64::from(self.config.segment_index_bytes)
                && span <= i64::from(i32::MAX);
            if count > 0 && !fits {
                break;
            }
            count += 1;
        }
        count
    }

    fn rewrite_group(
        &self,
        group: &[Source<D>],
        keep: &Keep<'_>,
        transactions: &mut Transactions,
        stats: &mut CleanStats,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Group, CleanError> {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let mut output = Output::create(self, first.base_offset)?;
        let mut unchanged = group.len() == 1;
        for source in group {
            let mut headers = Headers::new(&*source.file, 0, source.size);
            while let Some((position, header)) = self.next(source, &mut headers)? {
                if !go_on() {
                    return Err(CleanError::Stopped);
                }
                stats.batches_read += 1;
                stats.bytes_read += header.size_in_bytes() as u64;
                let failed = |cause| CleanError::Batch { offset: header.base_offset, cause };
                let batch = self.read_batch(source, position, &header)?;
                batch.verify_crc().map_err(failed)?;
                let is_last = source.base_offset == last.base_offset && headers.position() == source.size;
                match keep.batch(&batch, transactions, is_last, &mut output.aborted).map_err(failed)? {
                    Kept::Nothing => {
                        unchanged = false;
                        continue;
                    }
                    Kept::All => output.put(&batch)?,
                    Kept::Changed(changed) => {
                        unchanged = false;
                        output.put(&changed)?;
                    }
                }
                stats.batches_kept += 1;
            }
        }
        let modified = last.file.modified().doing("look up the age of", &self.path(last.base_offset, LOG))?;
        let (size, max) = output.finish(modified)?;
        stats.bytes_written += u64::from(size);
        Ok(Group { base_offset: first.base_offset, last_base_offset: last.base_offset, size, max, unchanged })
    }
}

impl<'a, D: Disk> Output<'a, D> {
    fn create(plan: &'a CleanPlan<D>, base_offset: Offset) -> Result<Self, StorageError> {
        let path = names::with_suffix(&plan.path(base_offset, LOG), CLEANED);
        let file = plan.disk.open(&path, Open::Truncate).doing("create", &path)?;
        Ok(Self {
            plan,
            base_offset,
            file,
            buffer: Vec::with_capacity(BUFFER),
            flushed: 0,
            indexed: Indexed::new(base_offset, plan.config.index_interval_bytes),
            aborted: Vec::new(),
        })
    }

    fn path(&self, kind: &str) -> std::path::PathBuf {
        names::with_suffix(&self.plan.path(self.base_offset, kind), CLEANED)
    }

    fn put(&mut self, batch: &Batch) -> Result<(), CleanError> {
        let position = self.flushed + self.buffer.len() as u64;
        let end = position + batch.bytes.len() as u64;
        // Recompressing may make a batch larger, so this is checked, not assumed.
        let position = u32::try_from(position).ok().filter(|_| end <= i32::MAX as u64).ok_or_else(|| {
            StorageError::invalid("write", &self.path(LOG), "compacted segment grew beyond 2 GiB")
        })?;
        let header: &BatchHeader = &batch.header;
        self.indexed.add(position, header);
        if self.buffer.len() + batch.bytes.len() > BUFFER {
            self.flush()?;
        }
        self.buffer.extend_from_slice(&batch.bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.file.write_all_at(&self.buffer, self.flushed).doing("write", &self.path(LOG))?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what is left, and the indexes; all of it is on stable storage then, but for the names.
    fn finish(
        mut self,
        modified: semel_model::Timestamp,
    ) -> Result<(u32, crate::scan::MaxTimestamp), StorageError> {
        self.flush()?;
        self.indexed.finish();
        let path = self.path(LOG);
        self.file.set_modified(modified).doing("write", &path)?;
        self.file.sync_all().doing("sync", &path)?;
        let transactions: Vec<u8> = self.aborted.iter().flat_map(AbortedTransaction::encode).collect();
        for (kind, bytes) in [
            (INDEX, index::encode(&self.indexed.index)),
            (TIME_INDEX, index::encode(&self.indexed.times)),
            (TXN_INDEX, transactions),
        ] {
            let path = self.path(kind);
            let file = self.plan.disk.open(&path, Open::Truncate).doing("create", &path)?;
            file.write_all_at(&bytes, 0).doing("write", &path)?;
            file.sync_all().doing("sync", &path)?;
        }
        let size = u32::try_from(self.flushed).unwrap_or(u32::MAX);
        Ok((size, self.indexed.tally.max))
    }
}
