//! Putting new segments in place of old ones, so that a crash at any step leaves all of the old or all of the new.

use std::{io, path::Path, sync::OnceLock};

use semel_env::Disk;
use semel_model::Offset;

use super::{CleanStats, Cleaned, Group};
use crate::{
    checkpoint,
    error::{Doing, StorageError},
    names::{self, CLEANED, INDEX, LOG, SNAPSHOT, SWAP, TIME_INDEX, TXN_INDEX},
    partition::{Closed, PartitionLog},
};

pub(super) const KINDS: [&str; 4] = [LOG, INDEX, TIME_INDEX, TXN_INDEX];

impl<D: Disk> PartitionLog<D> {
    /// Puts new segments in place. Groups whose segments were deleted meanwhile are left out; if the log was truncated
    /// meanwhile, all are, and nothing changes.
    ///
    /// On an error the log refuses everything from then on: it must be opened again, which carries the swap to its end
    /// or takes it back.
    pub fn install_cleaned(&mut self, cleaned: Cleaned) -> Result<CleanStats, StorageError> {
        let applicable = cleaned.truncations == self.truncations;
        let (install, drop): (Vec<Group>, Vec<Group>) = cleaned.groups.iter().copied().partition(|group| {
            applicable
                && !group.unchanged
                && self.closed.contains_key(&group.base_offset)
                && self.closed.contains_key(&group.last_base_offset)
        });
        for group in drop {
            for kind in KINDS {
                // What stays behind is swept by the next start.
                let _ = self
                    .disk
                    .remove_file(&names::with_suffix(&self.file_path(group.base_offset, kind), CLEANED));
            }
        }
        if !install.is_empty() {
            let swapped = self.swap(&install);
            if swapped.is_err() {
                self.failed = true;
            }
            swapped?;
        }
        if applicable {
            self.cleaned_to = self.cleaned_to.max(cleaned.cleaned_to);
        }
        Ok(cleaned.stats)
    }

    fn swap(&mut self, groups: &[Group]) -> Result<(), StorageError> {
        // The new files' names must be there before the file that says they count.
        self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        let manifest = self.dir.join(SWAP);
        let text = checkpoint::render(
            groups.iter().map(|group| format!("{} {}", group.base_offset, group.last_base_offset)),
        );
        self.disk.write_atomic(&manifest, text.as_bytes()).doing("write", &manifest)?;
        for group in groups {
            let replaced: Vec<Offset> = self
                .closed
                .range(group.base_offset..=group.last_base_offset)
                .map(|(base, _)| *base)
                .collect();
            for base in replaced {
                self.closed.remove(&base);
                if base != group.base_offset && self.snapshots.last() != Some(&base) {
                    self.snapshots.remove(&base);
                }
            }
            let max = OnceLock::from(group.max);
            self.closed.insert(group.base_offset, Closed { size: group.size, max });
        }
        self.cache().clear();
        carry_out(
            &self.disk,
            &self.dir,
            &manifest,
            groups.iter().map(|g| (g.base_offset, g.last_base_offset)),
        )?;
        Ok(())
    }
}

/// Carries an interrupted swap to its end; whether there was one.
pub(crate) fn finish_swap<D: Disk>(disk: &D, dir: &Path) -> Result<bool, StorageError> {
    let manifest = dir.join(SWAP);
    let Some(text) = checkpoint::read_text(disk, &manifest)? else { return Ok(false) };
    let groups = checkpoint::parse(&text, |line| {
        let (base, last) = checkpoint::pair(line)?;
        (base <= last).then_some((Offset(base), Offset(last)))
    })
    .map_err(|why| StorageError::invalid("read", &manifest, why))?;
    carry_out(disk, dir, &manifest, groups.into_iter())?;
    Ok(true)
}

/// Every step may be done again: a crash in between is followed by all of them.
fn carry_out<D: Disk>(
    disk: &D,
    dir: &Path,
    manifest: &Path,
    groups: impl Iterator<Item = (Offset, Offset)>,
) -> Result<(), StorageError> {
    let listed = disk.read_dir(dir).doing("list", dir)?;
    for (base, last) in groups {
        for kind in KINDS {
            let to = names::segment_file(dir, base, kind);
            let from = names::with_suffix(&to, CLEANED);
            match disk.rename(&from, &to) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed.doing("rename", &from)?,
            }
        }
        for entry in &listed {
            let replaced = [LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT].iter().any(|kind| {
                names::parse_segment_file(&entry.name, kind).is_some_and(|at| base < at && at <= last)
            });
            if replaced {
                let path = dir.join(&entry.name);
                match disk.remove_file(&path) {
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.doing("remove", &path)?,
                }
            }
        }
    }
    // The swap first, then the end of it: a manifest that came back after a crash must find nothing left to do.
    disk.sync_dir(dir).doing("sync", dir)?;
    disk.remove_file(manifest).doing("remove", manifest)?;
    disk.sync_dir(dir).doing("sync", dir)
}
