//! Which partition a record goes to.

use semel_model::PartitionIndex;

/// The 32-bit Murmur2 hash with Kafka's seed, as the Java client's default partitioner computes it.
#[must_use]
pub fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;

    let mut hash = SEED ^ data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (at, &byte) in tail.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ (hash >> 15)) as i32
}

/// The partition of a key among `partitions` (≥ 1): Kafka's own placement, so that a record of one key lands where
/// a Java producer would put it. The sign bit is dropped, not negated, as there.
#[must_use]
pub fn partition_for_key(key: &[u8], partitions: usize) -> PartitionIndex {
    let count = i32::try_from(partitions.max(1)).unwrap_or(i32::MAX);
    PartitionIndex((murmur2(key) & i32::MAX) % count)
}

/// Places records without a key: one partition until about a batch has gone there, then the next that has a leader
/// (KIP-480). Full batches cost the brokers far less than as many small ones.
#[derive(Debug)]
pub(crate) struct Sticky {
    cursor: usize,
    bytes: usize,
}

impl Sticky {
    /// `draw` decides where the round starts.
    pub(crate) fn new(draw: u64) -> Self {
        Self { cursor: (draw >> 33) as usize, bytes: 0 }
    }

    /// The place for a record of `size` bytes among `led`, the partitions that have a leader; of all `count` if none
    /// has.
    pub(crate) fn place(
        &mut self,
        size: usize,
        batch_bytes: usize,
        led: &[i32],
        count: usize,
    ) -> PartitionIndex {
        if self.bytes > 0 && self.bytes + size > batch_bytes {
            self.cursor = self.cursor.wrapping_add(1);
            self.bytes = 0;
        }
        self.bytes += size;
        match led {
            [] => PartitionIndex((self.cursor % count.max(1)) as i32),
            led => PartitionIndex(led[self.cursor % led.len()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_gives_kafkas_published_values() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (text, hash) in cases {
            assert_eq!(murmur2(text), hash, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn placement_drops_the_sign_bit() {
        assert_eq!(partition_for_key(b"foobar", 7), PartitionIndex((-790_332_482 & i32::MAX) % 7));
        assert_eq!(partition_for_key(b"", 1), PartitionIndex(0));
    }

    #[test]
    fn sticky_stays_for_a_batch_and_then_moves_on() {
        let mut sticky = Sticky::new(0);
        let places: Vec<i32> = (0..6).map(|_| sticky.place(40, 100, &[0, 2], 3).get()).collect();
        assert_eq!(places, [0, 0, 2, 2, 0, 0]);
        assert_eq!(Sticky::new(u64::MAX).place(1, 100, &[], 3).get(), (((u64::MAX >> 33) % 3) as i32));
    }
}
