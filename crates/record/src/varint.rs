//! Zigzag variable-length integers, as in Protocol Buffers.

/// Takes a 32-bit number off the front; `None` if the bytes end or it has more than 32 bits.
#[inline]
pub(crate) fn take_i32(from: &mut &[u8]) -> Option<i32> {
    let (&first, rest) = from.split_first()?;
    if first < 0x80 {
        *from = rest;
        return Some(unzigzag32(u32::from(first)));
    }
    let raw = take_u64(from, 5)?;
    Some(unzigzag32(u32::try_from(raw).ok()?))
}

/// Takes a 64-bit number off the front; `None` if the bytes end or it has more than 64 bits.
#[inline]
pub(crate) fn take_i64(from: &mut &[u8]) -> Option<i64> {
    let raw = take_u64(from, 10)?;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

/// Appends a 32-bit number, in 1 to 5 bytes.
pub(crate) fn put_i32(to: &mut Vec<u8>, value: i32) {
    put_u64(to, u64::from(((value << 1) ^ (value >> 31)) as u32));
}

/// Appends a 64-bit number, in 1 to 10 bytes.
pub(crate) fn put_i64(to: &mut Vec<u8>, value: i64) {
    put_u64(to, ((value << 1) ^ (value >> 63)) as u64);
}

/// How many bytes [`put_i32`] takes.
pub(crate) const fn size_i32(value: i32) -> usize {
    size_u64(((value << 1) ^ (value >> 31)) as u32 as u64)
}

/// How many bytes [`put_i64`] takes.
pub(crate) const fn size_i64(value: i64) -> usize {
    size_u64(((value << 1) ^ (value >> 63)) as u64)
}

const fn unzigzag32(raw: u32) -> i32 {
    (raw >> 1) as i32 ^ -((raw & 1) as i32)
}

const fn size_u64(raw: u64) -> usize {
    let bits = 64 - (raw | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn take_u64(from: &mut &[u8], bytes_max: usize) -> Option<u64> {
    let mut raw = 0_u64;
    for (at, &byte) in from.iter().take(bytes_max).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit only.
        if at == 9 && bits > 1 {
            return None;
        }
        raw |= bits << (7 * at);
        if byte < 0x80 {
            *from = &from[at + 1..];
            return Some(raw);
        }
    }
    None
}

fn put_u64(to: &mut Vec<u8>, mut raw: u64) {
    while raw >= 0x80 {
        to.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    to.push(raw as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(small: i32, large: i64) {
            let mut bytes = Vec::new();
            put_i32(&mut bytes, small);
            prop_assert_eq!(bytes.len(), size_i32(small));
            put_i64(&mut bytes, large);
            prop_assert_eq!(bytes.len(), size_i32(small) + size_i64(large));
            let mut from = &bytes[..];
            prop_assert_eq!(take_i32(&mut from), Some(small));
            prop_assert_eq!(take_i64(&mut from), Some(large));
            prop_assert!(from.is_empty());
        }
    }

    #[test]
    fn the_edges_have_their_known_bytes() {
        let encode = |value| {
            let mut bytes = Vec::new();
            put_i32(&mut bytes, value);
            bytes
        };
        assert_eq!(encode(0), [0]);
        assert_eq!(encode(-1), [1]);
        assert_eq!(encode(63), [0x7e]);
        assert_eq!(encode(64), [0x80, 1]);
        assert_eq!(encode(i32::MAX), [0xfe, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(encode(i32::MIN), [0xff, 0xff, 0xff, 0xff, 0x0f]);
    }

    #[test]
    fn endless_and_oversized_numbers_are_refused() {
        assert_eq!(take_i32(&mut &[0x80, 0x80][..]), None);
        assert_eq!(take_i32(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None);
        assert_eq!(take_i32(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0][..]), None);
        assert_eq!(take_i64(&mut &[0xff; 10][..]), None);
        assert_eq!(take_i64(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2][..]), None);
        assert_eq!(take_i32(&mut &[][..]), None);
    }
}
