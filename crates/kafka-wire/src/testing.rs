//! Pseudo-random values of every message (`XRequest::arbitrary`), for the tests of this crate and of those that
//! parse what it writes. Same seed, same values.

use bytes::Bytes;
use semel_model::TopicId;
use uuid::Uuid;

use crate::error_code::ErrorCode;
use crate::kstring::KString;
use crate::write::Records;

/// A small generator (SplitMix64), seeded by hand.
#[derive(Clone, Debug)]
pub struct TestRng(u64);

impl TestRng {
    /// A generator whose values follow from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn i8(&mut self) -> i8 {
        self.i64() as i8
    }

    pub(crate) fn i16(&mut self) -> i16 {
        self.i64() as i16
    }

    pub(crate) fn u16(&mut self) -> u16 {
        self.i64() as u16
    }

    pub(crate) fn i32(&mut self) -> i32 {
        self.i64() as i32
    }

    /// Small numbers, bounds and defaults come up often: they take other branches than the rest.
    pub(crate) fn i64(&mut self) -> i64 {
        match self.below(4) {
            0 => self.below(4) as i64 - 1,
            1 => [i64::MAX, i64::MIN, i64::from(i32::MAX), i64::from(i32::MIN)][self.below(4) as usize],
            _ => self.next_u64() as i64,
        }
    }

    pub(crate) fn f64(&mut self) -> f64 {
        self.next_u64() as i32 as f64 / 8.0
    }

    pub(crate) fn uuid(&mut self) -> Uuid {
        if self.below(4) == 0 { Uuid::nil() } else { Uuid::from_u64_pair(self.next_u64(), self.next_u64()) }
    }

    pub(crate) fn topic_id(&mut self) -> TopicId {
        TopicId(self.uuid())
    }

    pub(crate) fn error_code(&mut self) -> ErrorCode {
        let all = ErrorCode::ALL;
        all[self.below(all.len() as u64) as usize]
    }

    pub(crate) fn string(&mut self) -> KString {
        let alphabet = ['a', 'b', '-', '.', '7', 'é', '中', '🦀'];
        let length = if self.below(16) == 0 { self.below(300) } else { self.below(6) };
        let text: String = (0..length).map(|_| alphabet[self.below(8) as usize]).collect();
        KString::from(text)
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        let length = if self.below(16) == 0 { self.below(300) } else { self.below(6) };
        (0..length).map(|_| self.next_u64() as u8).collect()
    }

    pub(crate) fn records(&mut self) -> Option<Bytes> {
        match self.below(8) {
            0 => None,
            1 => Some(Bytes::from(vec![7; 5000])),
            _ => Some(self.bytes()),
        }
    }

    pub(crate) fn external_records(&mut self) -> Records {
        self.records().map_or(Records::Null, Records::Bytes)
    }

    pub(crate) fn option<T>(&mut self, null: bool, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if null && self.below(4) == 0 { None } else { Some(value(self)) }
    }

    pub(crate) fn vec<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = if self.below(32) == 0 { 40 } else { self.below(4) };
        (0..length).map(|_| value(self)).collect()
    }
}
