//! Which transactions hold the last stable offset back.

use std::collections::BTreeMap;

use semel_model::{Offset, ProducerId};

/// Transactions by their first offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transactions {
    /// Without a marker yet.
    open: BTreeMap<Offset, ProducerId>,
    /// With a marker (at the offset given) that is not below the high watermark yet: a failover might lose it.
    unreplicated: BTreeMap<Offset, Offset>,
}

impl Transactions {
    pub(crate) fn begin(&mut self, first_offset: Offset, producer_id: ProducerId) {
        self.open.insert(first_offset, producer_id);
    }

    /// The marker at `marker` ends the transaction that began at `first_offset`.
    pub(crate) fn end(&mut self, first_offset: Offset, marker: Offset, high_watermark: Offset) {
        self.open.remove(&first_offset);
        if marker >= high_watermark {
            self.unreplicated.insert(first_offset, marker);
        }
    }

    /// Lets go of those whose marker lies below `end` (exclusive).
    pub(crate) fn release(&mut self, end: Offset) {
        if !self.unreplicated.is_empty() {
            self.unreplicated.retain(|_, marker| *marker >= end);
        }
    }

    /// Forgets what stood at or after `log_end_offset`, and all that is open: the producer table tells that anew.
    pub(crate) fn reload(&mut self, log_end_offset: Offset) {
        self.open.clear();
        self.unreplicated.retain(|_, marker| *marker < log_end_offset);
    }

    /// The first offset of a transaction that is not both decided and replicated.
    pub(crate) fn first_unstable_offset(&self) -> Option<Offset> {
        let open = self.open.first_key_value().map(|(first, _)| *first);
        let unreplicated = self.unreplicated.first_key_value().map(|(first, _)| *first);
        match (open, unreplicated) {
            (Some(open), Some(unreplicated)) => Some(open.min(unreplicated)),
            (open, unreplicated) => open.or(unreplicated),
        }
    }

    /// Where the first transaction without a marker begins.
    pub(crate) fn first_open_offset(&self) -> Option<Offset> {
        self.open.first_key_value().map(|(first, _)| *first)
    }

    pub(crate) fn open(&self) -> impl ExactSizeIterator<Item = (Offset, ProducerId)> {
        self.open.iter().map(|(first, producer)| (*first, *producer))
    }
}
