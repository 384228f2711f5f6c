//! Keys and their last offsets, in bounded memory.

use std::hash::{DefaultHasher, Hasher};

use semel_model::Offset;

/// In bytes, of one slot.
const SLOT: usize = 24;
const SLOTS_MIN: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: [u64; 2],
    /// -1 in a free slot.
    offset: i64,
}

const FREE: Slot = Slot { hash: [0; 2], offset: -1 };

/// The last offset of each key, keys told apart by 128 bits of a hash whose key is drawn anew for each run: nobody can
/// make two keys that are taken for one.
#[derive(Debug)]
pub(crate) struct OffsetMap {
    slots: Vec<Slot>,
    used: usize,
    slots_max: usize,
    seed: [u64; 2],
}

impl OffsetMap {
    /// Holds as many keys as fit `bytes_max`, three quarters full.
    pub(crate) fn new(bytes_max: usize, seed: [u64; 2]) -> Self {
        let slots_max = (bytes_max / SLOT).max(8);
        Self { slots: vec![FREE; SLOTS_MIN.min(slots_max)], used: 0, slots_max, seed }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Notes that `key` stands at `offset`; `false`, and nothing noted, if there is no room for another key.
    #[must_use]
    pub(crate) fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        let hash = self.hash(key);
        let at = self.find(hash);
        if self.slots[at].offset < 0 {
            if (self.used + 1) * 4 > self.slots.len() * 3 {
                if self.slots.len() >= self.slots_max {
                    return false;
                }
                self.grow();
                return self.put(key, offset);
            }
            self.used += 1;
        }
        self.slots[at] = Slot { hash, offset: offset.get().max(self.slots[at].offset) };
        true
    }

    /// The last offset noted for `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Offset> {
        let slot = self.slots[self.find(self.hash(key))];
        (slot.offset >= 0).then_some(Offset(slot.offset))
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        self.seed.map(|seed| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(seed);
            hasher.write(key);
            hasher.finish()
        })
    }

    /// The slot of this hash, or the free one where it would go. There always is a free one.
    fn find(&self, hash: [u64; 2]) -> usize {
        let count = self.slots.len();
        let mut at = usize::try_from(hash[0] % count as u64).unwrap_or(0);
        while self.slots[at].offset >= 0 && self.slots[at].hash != hash {
            at = (at + 1) % count;
        }
        at
    }

    fn grow(&mut self) {
        let count = (self.slots.len() * 2).min(self.slots_max);
        let old = std::mem::replace(&mut self.slots, vec![FREE; count]);
        for slot in old.into_iter().filter(|slot| slot.offset >= 0) {
            let at = self.find(slot.hash);
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map_until_it_is_full() {
        let mut map = OffsetMap::new(6000 * SLOT, [1, 2]);
        let mut model = BTreeMap::new();
        for at in 0..20_000_i64 {
            let key = format!("k{}", at % 4400);
            assert!(map.put(key.as_bytes(), Offset(at)));
            model.insert(key, at);
        }
        assert_eq!(map.len(), model.len());
        for (key, at) in &model {
            assert_eq!(map.get(key.as_bytes()), Some(Offset(*at)));
        }
        assert_eq!(map.get(b"other"), None);
        let mut more = 0;
        while map.put(format!("new{more}").as_bytes(), Offset(1)) {
            more += 1;
        }
        assert_eq!(map.len(), 4500);
        assert!(map.put(b"k1", Offset(99_999)), "a known key needs no room");
    }
}
