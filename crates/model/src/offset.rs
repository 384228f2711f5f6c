//! Positions in a partition's log.

use crate::number;

number! {
    /// The position of a record in a partition, counted from 0 and never given twice.
    ///
    /// Whether a bound is inclusive is said by its name: `log_start_offset` is inclusive; `last_stable_offset`,
    /// `high_watermark`, `log_end_offset` are exclusive (the first offset that is *not* covered).
    Offset(i64)
}

impl Offset {
    /// The first offset of every log.
    pub const ZERO: Self = Self(0);

    /// The offset `count` records further on; saturates at `i64::MAX` (a log can't get there).
    #[must_use]
    pub const fn plus(self, count: i64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// The next offset.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// How many offsets lie in `earlier..self`; negative if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A half-open range of offsets: `start` is in it, `end` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffsetRange {
    /// Inclusive.
    pub start: Offset,
    /// Exclusive.
    pub end: Offset,
}

impl OffsetRange {
    /// Whether no offset is in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Whether `offset` is in the range.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        self.start <= offset && offset < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_its_start_and_not_its_end() {
        let range = OffsetRange { start: Offset(3), end: Offset(5) };
        assert!(!range.contains(Offset(2)));
        assert!(range.contains(Offset(3)));
        assert!(range.contains(Offset(4)));
        assert!(!range.contains(Offset(5)));
        assert!(OffsetRange { start: Offset(5), end: Offset(5) }.is_empty());
    }
}
