//! Idempotent and transactional producers.

use crate::number;

number! {
    /// The id the controller gave a producer. Kafka's "none" is -1.
    ProducerId(i64)
}
number! {
    /// The life of a producer id: a greater epoch fences the smaller. Kafka's "none" is -1.
    ProducerEpoch(i16)
}
number! {
    /// The position of a record among one producer's records to one partition. Counts from 0 and wraps from
    /// `i32::MAX` to 0, so it has no natural order: use [`Sequence::plus`] and equality.
    Sequence(i32)
}

impl ProducerId {
    /// A batch of a producer that is not idempotent.
    pub const NONE: Self = Self(-1);
}

impl ProducerEpoch {
    /// A batch of a producer that is not idempotent.
    pub const NONE: Self = Self(-1);
    /// The first life of a producer id.
    pub const FIRST: Self = Self(0);
    /// The last epoch a producer may use; reaching it calls for a new producer id (KIP-360).
    pub const EXHAUSTED: Self = Self(i16::MAX);
}

impl Sequence {
    /// A batch of a producer that is not idempotent, or a control batch.
    pub const NONE: Self = Self(-1);
    /// The first sequence of each producer epoch.
    pub const FIRST: Self = Self(0);

    /// The sequence `count` (≥ 0) records further on, wrapping from `i32::MAX` to 0 as Kafka's does.
    #[must_use]
    pub const fn plus(self, count: i32) -> Self {
        // i32::MAX is a sequence of its own, so the cycle has 2^31 positions.
        Self(((self.0 as i64 + count as i64) % (i32::MAX as i64 + 1)) as i32)
    }

    /// The sequence that must follow this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_after_the_largest() {
        assert_eq!(Sequence(i32::MAX).next(), Sequence(0));
        assert_eq!(Sequence(i32::MAX - 1).plus(3), Sequence(1));
        assert_eq!(Sequence(7).plus(0), Sequence(7));
        assert_eq!(Sequence::NONE.next(), Sequence::FIRST);
    }
}
