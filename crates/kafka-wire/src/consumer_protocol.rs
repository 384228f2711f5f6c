//! The bytes inside JoinGroup and SyncGroup: a version, then a message of the embedded consumer protocol.

use bytes::{Bytes, BytesMut};

use crate::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription, Message};
use crate::read::{DecodeError, Reader};
use crate::write::{Chunk, EncodeError, Writer};

/// The newest version of both messages.
const NEWEST: i16 = 3;

impl ConsumerProtocolSubscription {
    /// Reads what a consumer put into its JoinGroup metadata; gives its version too, which may be newer than any
    /// known here: it is then read as the newest, and what follows is left alone, as Kafka does.
    ///
    /// Errors: [`DecodeError`].
    pub fn from_bytes(bytes: Bytes) -> Result<(i16, Self), DecodeError> {
        read(bytes)
    }

    /// The bytes, version first. Errors: [`EncodeError`].
    pub fn to_bytes(&self, version: i16) -> Result<Bytes, EncodeError> {
        write(self, version)
    }
}

impl ConsumerProtocolAssignment {
    /// Reads what a group leader assigned to a member; as [`ConsumerProtocolSubscription::from_bytes`].
    ///
    /// Errors: [`DecodeError`].
    pub fn from_bytes(bytes: Bytes) -> Result<(i16, Self), DecodeError> {
        read(bytes)
    }

    /// The bytes, version first. Errors: [`EncodeError`].
    pub fn to_bytes(&self, version: i16) -> Result<Bytes, EncodeError> {
        write(self, version)
    }
}

fn read<M: Message>(bytes: Bytes) -> Result<(i16, M), DecodeError> {
    let mut r = Reader::new(bytes);
    let version = r.i16()?;
    let message = M::decode(&mut r, version.min(NEWEST))?;
    if version <= NEWEST {
        r.finish()?;
    }
    Ok((version, message))
}

fn write<M: Message>(message: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut w = Writer::new();
    w.i16(version);
    message.encode(&mut w, version)?;
    let mut whole = BytesMut::new();
    for chunk in w.into_chunks() {
        if let Chunk::Bytes(bytes) = chunk {
            whole.extend_from_slice(&bytes);
        }
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::consumer_protocol::TopicPartitions;
    use crate::read::DecodeError;

    fn subscription() -> ConsumerProtocolSubscription {
        ConsumerProtocolSubscription {
            topics: vec!["orders".into()],
            owned_partitions: vec![TopicPartitions { topic: "orders".into(), partitions: vec![0, 2] }],
            generation_id: 7,
            rack_id: Some("r1".into()),
            ..Default::default()
        }
    }

    #[test]
    fn every_version_keeps_what_it_can_carry() {
        for version in 0..=NEWEST {
            let (got, read) =
                ConsumerProtocolSubscription::from_bytes(subscription().to_bytes(version).unwrap()).unwrap();
            assert_eq!(got, version);
            assert_eq!(read.topics, subscription().topics);
            assert_eq!(read.owned_partitions.is_empty(), version < 1);
            assert_eq!(read.generation_id, if version < 2 { -1 } else { 7 });
            assert_eq!(read.rack_id.is_some(), version >= 3);
        }
    }

    #[test]
    fn a_newer_version_is_read_as_the_newest_known() {
        let mut bytes = subscription().to_bytes(NEWEST).unwrap().to_vec();
        bytes[1] = 9;
        bytes.extend_from_slice(b"what version 9 adds");
        let (version, read) = ConsumerProtocolSubscription::from_bytes(bytes.into()).unwrap();
        assert_eq!((version, read), (9, subscription()));
    }

    #[test]
    fn bytes_after_a_known_version_are_an_error() {
        let mut bytes = ConsumerProtocolAssignment::default().to_bytes(1).unwrap().to_vec();
        bytes.push(0);
        assert_eq!(
            ConsumerProtocolAssignment::from_bytes(bytes.into()),
            Err(DecodeError::TrailingBytes { count: 1 })
        );
        assert!(
            ConsumerProtocolAssignment::from_bytes(Bytes::from_static(&[0xff, 0xff, 0, 0, 0, 0])).is_err()
        );
    }
}
