//! Brokers, controllers, topics and partitions.

use std::{fmt, sync::Arc};

use uuid::Uuid;

use crate::number;

number! {
    /// A broker's id, unique in the cluster and chosen by its operator (`node.id`).
    BrokerId(i32)
}
number! {
    /// A controller voter's id. A different space from brokers: one host may run both.
    ControllerId(u64)
}
number! {
    /// A partition of a topic, counted from 0.
    PartitionIndex(i32)
}

impl BrokerId {
    /// Kafka's "no broker": a partition without a leader, a controller that is not known.
    pub const NONE: Self = Self(-1);
}

/// A topic's identity (KIP-516): survives nothing, so a topic that was deleted and made again is another topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub Uuid);

impl TopicId {
    /// Kafka's "no id" (all zero).
    pub const ZERO: Self = Self(Uuid::nil());

    /// From the sixteen bytes that stand on the wire.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The sixteen bytes that stand on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// Whether this is [`TopicId::ZERO`].
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_nil()
    }

    /// Reads the 22 letters of [`Display`](fmt::Display); `None` if they are anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 22 {
            return None;
        }
        let mut value: u128 = 0;
        for (at, letter) in text.bytes().enumerate() {
            let digit = BASE64_URL.iter().position(|&c| c == letter)? as u128;
            if at < 21 {
                value = (value << 6) | digit;
            } else {
                // The last letter carries the two remaining bits, on the left; the rest must be zero.
                if digit & 0b1111 != 0 {
                    return None;
                }
                value = (value << 2) | (digit >> 4);
            }
        }
        Some(Self(Uuid::from_u128(value)))
    }
}

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// As Kafka prints ids: URL-safe base64 without padding, 22 letters.
impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.as_u128();
        let mut text = [0_u8; 22];
        for (at, letter) in text.iter_mut().enumerate() {
            let bits = if at < 21 { (value >> (122 - 6 * at)) & 63 } else { (value & 3) << 4 };
            *letter = BASE64_URL[bits as usize];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

/// A legal topic name, shared cheaply: 1 to 249 of `[a-zA-Z0-9._-]`, and not `.` or `..` (Kafka's rule, which
/// keeps a name usable as part of a directory's).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Why a text is no topic name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicNameError {
    /// It has no letters.
    Empty,
    /// It is longer than [`TopicName::MAX_LENGTH`].
    TooLong,
    /// It is `.` or `..`.
    Dots,
    /// It has a letter other than `[a-zA-Z0-9._-]`.
    BadLetter,
}

impl fmt::Display for TopicNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "topic name is empty",
            Self::TooLong => "topic name is longer than 249 characters",
            Self::Dots => "topic name is '.' or '..'",
            Self::BadLetter => "topic name has a character other than a-z, A-Z, 0-9, '.', '_' and '-'",
        })
    }
}

impl std::error::Error for TopicNameError {}

impl TopicName {
    /// In bytes, so that `<name>-<partition>` and a suffix fit a file name of 255.
    pub const MAX_LENGTH: usize = 249;

    /// Checks `name` against Kafka's rule.
    pub fn new(name: &str) -> Result<Self, TopicNameError> {
        if name.is_empty() {
            return Err(TopicNameError::Empty);
        }
        if name.len() > Self::MAX_LENGTH {
            return Err(TopicNameError::TooLong);
        }
        if name == "." || name == ".." {
            return Err(TopicNameError::Dots);
        }
        if !name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')) {
            return Err(TopicNameError::BadLetter);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this topic is the system's own and not for users to delete or write.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        matches!(self.as_str(), "__consumer_offsets" | "__transaction_state")
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A partition of a topic by identity. Names change owners, ids do not: everything inside Semel uses this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// Of which topic.
    pub topic: TopicId,
    /// Which of its partitions.
    pub partition: PartitionIndex,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_print_as_kafka_prints_them() {
        // Kafka's own reserved id for the metadata topic: all bits zero but the last.
        let metadata = TopicId(Uuid::from_u128(1));
        assert_eq!(metadata.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        let id = TopicId(Uuid::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210));
        assert_eq!(TopicId::parse(&id.to_string()), Some(id));
        assert_eq!(TopicId::parse("AAAAAAAAAAAAAAAAAAAAAR"), None);
        assert_eq!(TopicId::parse("short"), None);
    }

    #[test]
    fn topic_names_follow_kafkas_rule() {
        assert!(TopicName::new("orders.v1_a-b").is_ok());
        assert_eq!(TopicName::new(""), Err(TopicNameError::Empty));
        assert_eq!(TopicName::new(".."), Err(TopicNameError::Dots));
        assert_eq!(TopicName::new("a/b"), Err(TopicNameError::BadLetter));
        assert_eq!(TopicName::new(&"x".repeat(250)), Err(TopicNameError::TooLong));
        assert!(TopicName::new(&"x".repeat(249)).is_ok());
    }
}
