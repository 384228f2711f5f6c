//! Time and sizes.

use std::time::Duration;

use crate::number;

number! {
    /// Milliseconds since the Unix epoch, UTC. Kafka's "no timestamp" is -1.
    Timestamp(i64)
}
number! {
    /// A length of time in milliseconds, as Kafka's configurations give it. `-1` means "no limit" where the
    /// setting says so; such a setting is an `Option<Millis>` inside Semel.
    Millis(i64)
}
number! {
    /// A size in bytes.
    Bytes64(u64)
}

impl Timestamp {
    /// Kafka's "no timestamp".
    pub const NONE: Self = Self(-1);

    /// `span` later; saturates.
    #[must_use]
    pub const fn plus(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; negative if it is before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Millis {
    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// As a `Duration`; a negative span is zero.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(if self.0 < 0 { 0 } else { self.0 as u64 })
    }
}
