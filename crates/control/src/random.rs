//! Random choices drawn from a request's entropy, so that a decision is a function of its inputs.

use semel_model::TopicId;

/// SplitMix64 over the two halves of a request's entropy. For spreading load and making ids, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    stream: u64,
}

impl Random {
    pub(crate) fn new(entropy: u128) -> Self {
        let bytes = entropy.to_le_bytes();
        let half = |at: usize| {
            bytes[at..at + 8].iter().rev().fold(0_u64, |value, byte| (value << 8) | u64::from(*byte))
        };
        // An odd increment visits all 2^64 states; the second half makes each request's walk its own.
        Self { state: half(0), stream: half(8) | 1 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(self.stream ^ 0x9e37_79b9_7f4a_7c14);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap_or(0)
    }

    /// A random (version 4) UUID whose printed form does not begin with a dash, as Kafka draws them: tools take
    /// such a one for an option.
    pub(crate) fn id(&mut self) -> TopicId {
        loop {
            let mut bytes = (u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes();
            bytes[6] = (bytes[6] & 0x0f) | 0x40;
            bytes[8] = (bytes[8] & 0x3f) | 0x80;
            let id = TopicId::from_bytes(bytes);
            if !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}
