//! Which leadership wrote from which offset on (KIP-101): `leader-epoch-checkpoint`.

use semel_model::{LeaderEpoch, Offset};

use crate::checkpoint;

/// One leadership: it wrote the offsets from `start_offset` (inclusive) to the next entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEntry {
    /// The leadership.
    pub leader_epoch: LeaderEpoch,
    /// The first offset it could write.
    pub start_offset: Offset,
}

/// The answer to OffsetForLeaderEpoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch known that is not greater than the one asked for; the follower truncates by it (KIP-279).
    pub leader_epoch: LeaderEpoch,
    /// Where it ends, exclusive.
    pub end_offset: Offset,
}

/// The leadership history of a log, both columns strictly increasing. Bounded by the number of leader changes within
/// what is retained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaderEpochs(Vec<EpochEntry>);

impl LeaderEpochs {
    pub(crate) fn latest(&self) -> Option<EpochEntry> {
        self.0.last().copied()
    }

    pub(crate) fn entries(&self) -> &[EpochEntry] {
        &self.0
    }

    /// Notes that `leader_epoch` writes from `start_offset` on; whether anything changed.
    ///
    /// Entries that contradict it (of the same or a later offset) go: they never wrote a record that is still there.
    pub(crate) fn assign(&mut self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool {
        if leader_epoch < LeaderEpoch::FIRST
            || self.latest().is_some_and(|last| last.leader_epoch >= leader_epoch)
        {
            return false;
        }
        self.truncate_from_end(start_offset);
        self.0.push(EpochEntry { leader_epoch, start_offset });
        true
    }

    /// Forgets leaderships that start at or after `end_offset`; whether anything changed.
    pub(crate) fn truncate_from_end(&mut self, end_offset: Offset) -> bool {
        let keep = self.0.partition_point(|entry| entry.start_offset < end_offset);
        let changed = keep < self.0.len();
        self.0.truncate(keep);
        changed
    }

    /// Forgets leaderships that end at or before `start_offset`; the one it falls into now starts there. Whether
    /// anything changed.
    pub(crate) fn truncate_from_start(&mut self, start_offset: Offset) -> bool {
        let covering = self.0.partition_point(|entry| entry.start_offset <= start_offset);
        if covering == 0 || self.0[covering - 1].start_offset == start_offset && covering == 1 {
            return false;
        }
        self.0.drain(..covering - 1);
        self.0[0].start_offset = start_offset;
        true
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Who wrote `offset`; [`LeaderEpoch::NONE`] if that is not known.
    pub(crate) fn epoch_at(&self, offset: Offset) -> LeaderEpoch {
        match self.0.partition_point(|entry| entry.start_offset <= offset) {
            0 => LeaderEpoch::NONE,
            after => self.0[after - 1].leader_epoch,
        }
    }

    /// Where `leader_epoch` ends in a log that ends at `log_end_offset`; `None` if that can't be known here.
    ///
    /// Source: KIP-101, KIP-279.
    pub(crate) fn end_offset_for(
        &self,
        leader_epoch: LeaderEpoch,
        log_end_offset: Offset,
    ) -> Option<EpochEnd> {
        let latest = self.latest()?;
        if leader_epoch < LeaderEpoch::FIRST || leader_epoch > latest.leader_epoch {
            return None;
        }
        if leader_epoch == latest.leader_epoch {
            return Some(EpochEnd { leader_epoch, end_offset: log_end_offset });
        }
        let higher = self.0.partition_point(|entry| entry.leader_epoch <= leader_epoch);
        let end_offset = self.0[higher].start_offset;
        // An epoch older than all that is known ends, as far as can be told, where the history begins.
        let leader_epoch = if higher == 0 { leader_epoch } else { self.0[higher - 1].leader_epoch };
        Some(EpochEnd { leader_epoch, end_offset })
    }

    pub(crate) fn render(&self) -> String {
        checkpoint::render(
            self.0.iter().map(|entry| format!("{} {}", entry.leader_epoch, entry.start_offset)),
        )
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let entries = checkpoint::parse(text, |line| {
            let (epoch, start): (i32, i64) = checkpoint::pair(line)?;
            (epoch >= 0 && start >= 0)
                .then_some(EpochEntry { leader_epoch: LeaderEpoch(epoch), start_offset: Offset(start) })
        })?;
        let ordered =
            entries.is_sorted_by(|a, b| a.leader_epoch < b.leader_epoch && a.start_offset < b.start_offset);
        if ordered { Ok(Self(entries)) } else { Err("entries out of order".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(i32, i64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::default();
        for (epoch, start) in entries {
            assert!(epochs.assign(LeaderEpoch(*epoch), Offset(*start)));
        }
        epochs
    }

    fn pairs(epochs: &LeaderEpochs) -> Vec<(i32, i64)> {
        epochs.0.iter().map(|entry| (entry.leader_epoch.get(), entry.start_offset.get())).collect()
    }

    #[test]
    fn the_bytes_are_kafkas() {
        let epochs = history(&[(0, 0), (3, 10)]);
        assert_eq!(epochs.render(), "0\n2\n0 0\n3 10\n");
        assert_eq!(LeaderEpochs::parse(&epochs.render()), Ok(epochs));
        assert!(LeaderEpochs::parse("0\n2\n3 10\n0 20\n").is_err());
    }

    #[test]
    fn ends_of_epochs() {
        let epochs = history(&[(2, 5), (4, 20), (7, 30)]);
        let end = |epoch| {
            epochs
                .end_offset_for(LeaderEpoch(epoch), Offset(42))
                .map(|e| (e.leader_epoch.get(), e.end_offset.get()))
        };
        assert_eq!(end(7), Some((7, 42)));
        assert_eq!(end(8), None);
        assert_eq!(end(4), Some((4, 30)));
        assert_eq!(end(5), Some((4, 30)), "an epoch that wrote nothing ends with the one before it");
        assert_eq!(end(2), Some((2, 20)));
        assert_eq!(end(0), Some((0, 5)));
        assert_eq!(end(-1), None);
        assert_eq!(LeaderEpochs::default().end_offset_for(LeaderEpoch(0), Offset(1)), None);
    }

    #[test]
    fn assignments_and_truncations() {
        let mut epochs = history(&[(0, 0), (2, 10), (5, 20)]);
        assert!(!epochs.assign(LeaderEpoch(4), Offset(30)), "an older epoch never comes back");
        assert!(epochs.assign(LeaderEpoch(6), Offset(20)), "an epoch that wrote nothing is replaced");
        assert_eq!(pairs(&epochs), [(0, 0), (2, 10), (6, 20)]);
        assert!(epochs.truncate_from_end(Offset(20)));
        assert!(!epochs.truncate_from_end(Offset(20)));
        assert!(epochs.truncate_from_start(Offset(4)));
        assert_eq!(pairs(&epochs), [(0, 4), (2, 10)]);
        assert!(epochs.truncate_from_start(Offset(10)));
        assert!(!epochs.truncate_from_start(Offset(10)));
        assert!(!epochs.truncate_from_start(Offset(3)));
        assert_eq!(pairs(&epochs), [(2, 10)]);
        assert_eq!(epochs.epoch_at(Offset(9)), LeaderEpoch::NONE);
        assert_eq!(epochs.epoch_at(Offset(10)), LeaderEpoch(2));
    }
}
