//! A string that is a slice of the frame it came in.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// A UTF-8 string backed by [`Bytes`]: decoding and cloning copy nothing.
///
/// It keeps its whole frame alive. To hold a string longer than its request, copy it out (`to_string`, or
/// [`KString::detached`]).
#[derive(Clone, Default)]
pub struct KString(Bytes);

/// The bytes were not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not UTF-8")]
pub struct NotUtf8;

impl KString {
    /// A string that costs no allocation.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Checks and wraps bytes.
    ///
    /// Errors: [`NotUtf8`].
    pub fn from_utf8(bytes: Bytes) -> Result<Self, NotUtf8> {
        match std::str::from_utf8(&bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => Err(NotUtf8),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked again because skipping the check needs `unsafe`: a few nanoseconds for the names met here.
        std::str::from_utf8(&self.0).expect("every constructor checks that the bytes are UTF-8")
    }

    /// The bytes, without a copy.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// A copy that no longer keeps the frame alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl Deref for KString {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for KString {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for KString {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for KString {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for KString {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl From<KString> for String {
    fn from(text: KString) -> Self {
        text.as_str().to_owned()
    }
}

impl PartialEq for KString {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for KString {}

impl PartialEq<str> for KString {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for KString {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialOrd for KString {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KString {
    fn cmp(&self, other: &Self) -> Ordering {
        // UTF-8 sorts as its code points do.
        self.0.cmp(&other.0)
    }
}

impl Hash for KString {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As `str` hashes, because of `Borrow<str>`.
        self.as_str().hash(state);
    }
}

impl fmt::Debug for KString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for KString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_utf8_becomes_a_string() {
        assert_eq!(KString::from_utf8(Bytes::from_static(&[0xff, 0x41])), Err(NotUtf8));
        assert_eq!(KString::from_utf8(Bytes::from_static("né".as_bytes())).unwrap(), "né");
    }

    #[test]
    fn a_map_of_strings_is_looked_up_by_str() {
        let map: BTreeMap<KString, i32> = [(KString::from_static("b"), 2), (KString::from("a"), 1)].into();
        assert_eq!(map.get("a"), Some(&1));
        assert_eq!(map.keys().next().unwrap(), "a");
    }

    #[test]
    fn a_detached_string_has_its_own_memory() {
        let frame = Bytes::from(b"topic-and-more".to_vec());
        let slice = KString::from_utf8(frame.slice(..5)).unwrap();
        assert_eq!(slice.0.as_ptr(), frame.as_ptr());
        assert_ne!(slice.detached().0.as_ptr(), frame.as_ptr());
        assert_eq!(slice.detached(), "topic");
    }
}
