//! Metadata records and images, to and from their stored and sent form.
//!
//! The same encoding lies in the controllers' Raft log and snapshots and goes to every watching node.
//! [`encode_batch`] and [`decode_batch`] are one Raft entry, [`encode_image`] and [`decode_image`] one snapshot;
//! [`delta_message`], [`image_message`] and [`watch_message`] are the watch stream's.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use semel_metadata::{
    ClusterImage, ConfigResource, Delta, DirectoryId, IncarnationId, Message, PartitionState, Record,
    RegisterBroker,
};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    ProducerId, TopicId, TopicName, TopicNameError, TopicPartition,
};

use crate::internal::v1 as pb;

/// Why bytes or a message are no metadata.
#[derive(Debug, thiserror::Error)]
pub enum MalformedMetadata {
    /// Not Protobuf at all.
    #[error("metadata cannot be decoded")]
    Undecodable(#[source] prost::DecodeError),
    /// A record of a kind this build does not know: it was written by a newer one.
    #[error("metadata record of an unknown kind: written by a newer version")]
    UnknownRecord,
    /// A message that must be there is not.
    #[error("{message} without {field}")]
    Missing {
        /// In what.
        message: &'static str,
        /// What.
        field: &'static str,
    },
    /// Bytes that must be sixteen.
    #[error("{field} has {length} bytes instead of 16")]
    IdLength {
        /// Where.
        field: &'static str,
        /// How many.
        length: usize,
    },
    /// No topic name.
    #[error("bad topic name")]
    TopicName(#[source] TopicNameError),
    /// A number outside its range.
    #[error("{field} is {value}")]
    OutOfRange {
        /// Where.
        field: &'static str,
        /// As it came.
        value: i64,
    },
    /// A broker's id that is no number.
    #[error("{0:?} is not a broker id")]
    BrokerName(String),
}

/// The stored form of one atomic change.
#[must_use]
pub fn encode_batch(records: &[Record]) -> Bytes {
    pb::MetadataBatch { records: records.iter().map(Into::into).collect() }.encode_to_vec().into()
}

/// What [`encode_batch`] wrote.
pub fn decode_batch(bytes: Bytes) -> Result<Vec<Record>, MalformedMetadata> {
    let batch = pb::MetadataBatch::decode(bytes).map_err(MalformedMetadata::Undecodable)?;
    batch.records.into_iter().map(Record::try_from).collect()
}

/// The stored form of an image.
#[must_use]
pub fn encode_image(image: &ClusterImage) -> Bytes {
    pb::MetadataImage::from(image).encode_to_vec().into()
}

/// What [`encode_image`] wrote.
pub fn decode_image(bytes: Bytes) -> Result<ClusterImage, MalformedMetadata> {
    pb::MetadataImage::decode(bytes).map_err(MalformedMetadata::Undecodable)?.try_into()
}

/// One change as a watching node gets it.
#[must_use]
pub fn delta_message(delta: &Delta) -> pb::WatchMetadataResponse {
    pb::WatchMetadataResponse {
        controller_epoch: delta.controller_epoch.0,
        index: delta.index.0,
        change: Some(pb::watch_metadata_response::Change::Delta(pb::watch_metadata_response::Delta {
            index: delta.index.0,
            records: delta.records.iter().map(Into::into).collect(),
        })),
    }
}

/// An image as a watching node gets it.
#[must_use]
pub fn image_message(image: &ClusterImage) -> pb::WatchMetadataResponse {
    pb::WatchMetadataResponse {
        controller_epoch: image.controller_epoch().0,
        index: image.index().0,
        change: Some(pb::watch_metadata_response::Change::Image(image.into())),
    }
}

/// A message of the watch stream, for [`semel_metadata::Session::receive`].
pub fn watch_message(response: pb::WatchMetadataResponse) -> Result<Message, MalformedMetadata> {
    use pb::watch_metadata_response::Change;
    let missing = MalformedMetadata::Missing { message: "WatchMetadataResponse", field: "change" };
    match response.change.ok_or(missing)? {
        Change::Image(image) => Ok(Message::Image(image.try_into()?)),
        Change::Delta(delta) => Ok(Message::Delta(Delta {
            index: MetadataIndex(delta.index),
            controller_epoch: ControllerEpoch(response.controller_epoch),
            records: delta.records.into_iter().map(Record::try_from).collect::<Result<_, _>>()?,
        })),
    }
}

impl From<&ClusterImage> for pb::MetadataImage {
    fn from(image: &ClusterImage) -> Self {
        let records = image
            .records()
            .iter()
            .map(|(index, record)| pb::MetadataImageRecord { index: index.0, record: Some(record.into()) })
            .collect();
        Self { records, index: image.index().0, controller_epoch: image.controller_epoch().0 }
    }
}

impl TryFrom<pb::MetadataImage> for ClusterImage {
    type Error = MalformedMetadata;

    fn try_from(image: pb::MetadataImage) -> Result<Self, MalformedMetadata> {
        let records = image.records.into_iter().map(|entry| {
            let missing = MalformedMetadata::Missing { message: "MetadataImageRecord", field: "record" };
            Ok((MetadataIndex(entry.index), entry.record.ok_or(missing)?.try_into()?))
        });
        let records = records.collect::<Result<Vec<_>, MalformedMetadata>>()?;
        let index = MetadataIndex(image.index);
        Ok(Self::from_records(index, ControllerEpoch(image.controller_epoch), records))
    }
}

impl From<&Record> for pb::MetadataRecord {
    fn from(record: &Record) -> Self {
        use pb::metadata_record::Record as P;
        let record = match record {
            Record::ClusterCreated { cluster_id } => {
                P::ClusterCreated(pb::ClusterCreated { cluster_id: cluster_id.to_string() })
            }
            Record::RegisterBroker(broker) => P::RegisterBroker(pb::RegisterBroker {
                broker_id: broker.broker.0,
                incarnation_id: Bytes::copy_from_slice(&broker.incarnation.0),
                kafka_host: broker.kafka_host.to_string(),
                kafka_port: i32::from(broker.kafka_port),
                grpc_address: broker.grpc_address.to_string(),
                rack: broker.rack.as_ref().map(ToString::to_string),
                directory_ids: broker.directories.iter().map(|id| Bytes::copy_from_slice(&id.0)).collect(),
            }),
            Record::BrokerFence { broker, epoch, fenced, shutting_down } => P::BrokerFence(pb::BrokerFence {
                broker_id: broker.0,
                broker_epoch: epoch.0,
                fenced: *fenced,
                shutting_down: *shutting_down,
            }),
            Record::UnregisterBroker { broker, epoch } => {
                P::UnregisterBroker(pb::UnregisterBroker { broker_id: broker.0, broker_epoch: epoch.0 })
            }
            Record::TopicCreated { name, id } => {
                P::TopicCreated(pb::TopicCreated { name: name.to_string(), topic_id: topic_id_bytes(*id) })
            }
            Record::TopicRemoved { id } => {
                P::TopicRemoved(pb::TopicRemoved { topic_id: topic_id_bytes(*id) })
            }
            Record::PartitionState(state) => P::PartitionState(pb::PartitionState {
                topic_id: topic_id_bytes(state.partition.topic),
                partition: state.partition.partition.0,
                replicas: state.replicas.iter().map(|id| id.0).collect(),
                isr: state.isr.iter().map(|id| id.0).collect(),
                leader: state.leader.unwrap_or(BrokerId::NONE).0,
                leader_epoch: state.leader_epoch.0,
                partition_epoch: state.partition_epoch.0,
            }),
            Record::ConfigChange { resource, key, value } => {
                use pb::config_change::Resource;
                let (resource, name) = match resource {
                    ConfigResource::Topic(name) => (Resource::Topic, name.to_string()),
                    ConfigResource::Broker(id) => (Resource::Broker, id.to_string()),
                    ConfigResource::Cluster => (Resource::Cluster, String::new()),
                };
                P::ConfigChange(pb::ConfigChange {
                    resource: resource.into(),
                    name,
                    key: key.to_string(),
                    value: value.as_ref().map(ToString::to_string),
                })
            }
            Record::ProducerIdBlock { broker, epoch, next_producer_id } => {
                P::ProducerIdBlock(pb::ProducerIdBlock {
                    broker_id: broker.0,
                    broker_epoch: epoch.0,
                    next_producer_id: next_producer_id.0,
                })
            }
        };
        Self { record: Some(record) }
    }
}

impl TryFrom<pb::MetadataRecord> for Record {
    type Error = MalformedMetadata;

    fn try_from(record: pb::MetadataRecord) -> Result<Self, MalformedMetadata> {
        use pb::metadata_record::Record as P;
        // Prost drops fields it does not know, so a newer kind of record arrives as none.
        Ok(match record.record.ok_or(MalformedMetadata::UnknownRecord)? {
            P::ClusterCreated(created) => Self::ClusterCreated { cluster_id: created.cluster_id.into() },
            P::RegisterBroker(broker) => Self::RegisterBroker(RegisterBroker {
                broker: BrokerId(broker.broker_id),
                incarnation: IncarnationId(sixteen("incarnation_id", &broker.incarnation_id)?),
                kafka_host: broker.kafka_host.into(),
                kafka_port: port(broker.kafka_port)?,
                grpc_address: broker.grpc_address.into(),
                rack: broker.rack.map(Arc::from),
                directories: directory_ids(&broker.directory_ids)?,
            }),
            P::BrokerFence(fence) => Self::BrokerFence {
                broker: BrokerId(fence.broker_id),
                epoch: BrokerEpoch(fence.broker_epoch),
                fenced: fence.fenced,
                shutting_down: fence.shutting_down,
            },
            P::UnregisterBroker(gone) => Self::UnregisterBroker {
                broker: BrokerId(gone.broker_id),
                epoch: BrokerEpoch(gone.broker_epoch),
            },
            P::TopicCreated(topic) => Self::TopicCreated {
                name: TopicName::new(&topic.name).map_err(MalformedMetadata::TopicName)?,
                id: topic_id(&topic.topic_id)?,
            },
            P::TopicRemoved(topic) => Self::TopicRemoved { id: topic_id(&topic.topic_id)? },
            P::PartitionState(state) => Self::PartitionState(PartitionState {
                partition: TopicPartition {
                    topic: topic_id(&state.topic_id)?,
                    partition: PartitionIndex(not_negative("partition", state.partition)?),
                },
                replicas: state.replicas.into_iter().map(BrokerId).collect(),
                isr: state.isr.into_iter().map(BrokerId).collect(),
                leader: (state.leader >= 0).then_some(BrokerId(state.leader)),
                leader_epoch: LeaderEpoch(state.leader_epoch),
                partition_epoch: PartitionEpoch(state.partition_epoch),
            }),
            P::ConfigChange(change) => Self::ConfigChange {
                resource: config_resource(change.resource, &change.name)?,
                key: change.key.into(),
                value: change.value.map(Arc::from),
            },
            P::ProducerIdBlock(block) => Self::ProducerIdBlock {
                broker: BrokerId(block.broker_id),
                epoch: BrokerEpoch(block.broker_epoch),
                next_producer_id: ProducerId(block.next_producer_id),
            },
        })
    }
}

/// A topic id as it goes into a message.
#[must_use]
pub fn topic_id_bytes(id: TopicId) -> Bytes {
    Bytes::copy_from_slice(&id.to_bytes())
}

/// A topic id from a message.
pub fn topic_id(bytes: &[u8]) -> Result<TopicId, MalformedMetadata> {
    sixteen("topic_id", bytes).map(TopicId::from_bytes)
}

/// An incarnation id from a message.
pub fn incarnation_id(bytes: &[u8]) -> Result<IncarnationId, MalformedMetadata> {
    sixteen("incarnation_id", bytes).map(IncarnationId)
}

/// Directory ids from a message.
pub fn directory_ids(ids: &[Bytes]) -> Result<Arc<[DirectoryId]>, MalformedMetadata> {
    ids.iter().map(|id| sixteen("directory_ids", id).map(DirectoryId)).collect()
}

/// A TCP port from a message.
pub fn port(value: i32) -> Result<u16, MalformedMetadata> {
    let wrong = MalformedMetadata::OutOfRange { field: "kafka_port", value: i64::from(value) };
    u16::try_from(value).map_err(|_| wrong)
}

fn config_resource(kind: i32, name: &str) -> Result<ConfigResource, MalformedMetadata> {
    use pb::config_change::Resource;
    let wrong = || MalformedMetadata::OutOfRange { field: "resource", value: i64::from(kind) };
    match Resource::try_from(kind).map_err(|_| wrong())? {
        Resource::Unspecified => Err(wrong()),
        Resource::Topic => {
            TopicName::new(name).map(ConfigResource::Topic).map_err(MalformedMetadata::TopicName)
        }
        Resource::Broker => {
            let id = name.parse().map_err(|_| MalformedMetadata::BrokerName(name.to_owned()))?;
            Ok(ConfigResource::Broker(BrokerId(id)))
        }
        Resource::Cluster => Ok(ConfigResource::Cluster),
    }
}

fn sixteen(field: &'static str, bytes: &[u8]) -> Result<[u8; 16], MalformedMetadata> {
    bytes.try_into().map_err(|_| MalformedMetadata::IdLength { field, length: bytes.len() })
}

fn not_negative(field: &'static str, value: i32) -> Result<i32, MalformedMetadata> {
    if value < 0 { Err(MalformedMetadata::OutOfRange { field, value: i64::from(value) }) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record> {
        let topic = TopicId::from_bytes([0xab; 16]);
        let name = TopicName::new("orders").unwrap();
        let set = |resource, value: Option<&str>| Record::ConfigChange {
            resource,
            key: "retention.ms".into(),
            value: value.map(Arc::from),
        };
        vec![
            Record::ClusterCreated { cluster_id: "AAAAAAAAAAAAAAAAAAAAAQ".into() },
            Record::RegisterBroker(RegisterBroker {
                broker: BrokerId(1),
                incarnation: IncarnationId([7; 16]),
                kafka_host: "b1.example".into(),
                kafka_port: 9092,
                grpc_address: "b1.example:9190".into(),
                rack: Some("a".into()),
                directories: [].into(),
            }),
            Record::BrokerFence {
                broker: BrokerId(1),
                epoch: BrokerEpoch(2),
                fenced: false,
                shutting_down: true,
            },
            Record::UnregisterBroker { broker: BrokerId(1), epoch: BrokerEpoch(2) },
            Record::TopicCreated { name: name.clone(), id: topic },
            Record::PartitionState(PartitionState {
                partition: TopicPartition { topic, partition: PartitionIndex(0) },
                replicas: [BrokerId(1), BrokerId(0)].into(),
                isr: [BrokerId(1)].into(),
                leader: Some(BrokerId(1)),
                leader_epoch: LeaderEpoch(3),
                partition_epoch: PartitionEpoch(4),
            }),
            Record::PartitionState(PartitionState {
                partition: TopicPartition { topic, partition: PartitionIndex(0) },
                replicas: [BrokerId(0)].into(),
                isr: [BrokerId(0)].into(),
                leader: None,
                leader_epoch: LeaderEpoch(4),
                partition_epoch: PartitionEpoch(5),
            }),
            set(ConfigResource::Topic(name), Some("-1")),
            set(ConfigResource::Broker(BrokerId(3)), Some("")),
            set(ConfigResource::Cluster, None),
            Record::ProducerIdBlock {
                broker: BrokerId(1),
                epoch: BrokerEpoch(2),
                next_producer_id: ProducerId(1000),
            },
            Record::TopicRemoved { id: topic },
            Record::RegisterBroker(RegisterBroker {
                broker: BrokerId(2),
                incarnation: IncarnationId([8; 16]),
                kafka_host: "b2.example".into(),
                kafka_port: 9092,
                grpc_address: "b2.example:9190".into(),
                rack: None,
                directories: [DirectoryId([0xd1; 16]), DirectoryId([0xd2; 16])].into(),
            }),
        ]
    }

    #[test]
    fn every_record_survives_its_stored_form() {
        assert_eq!(decode_batch(encode_batch(&samples())).unwrap(), samples());
    }

    #[test]
    fn the_stored_form_does_not_change() {
        let hex: Vec<String> = samples()
            .iter()
            .map(|record| {
                let bytes = encode_batch(std::slice::from_ref(record));
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            })
            .collect();
        let golden: Vec<&str> = include_str!("../testdata/metadata_records.hex").lines().collect();
        assert_eq!(hex, golden);
    }

    #[test]
    fn an_image_survives_snapshot_and_stream() {
        let mut image = ClusterImage::new();
        // All but the topic's end.
        let kept = samples().into_iter().filter(|record| !matches!(record, Record::TopicRemoved { .. }));
        for (index, record) in (1..).zip(kept) {
            image.apply_delta(&Delta {
                index: MetadataIndex(index),
                controller_epoch: ControllerEpoch(2),
                records: vec![record],
            });
        }
        assert_eq!(decode_image(encode_image(&image)).unwrap(), image);
        assert_eq!(watch_message(image_message(&image)).unwrap(), Message::Image(image));
        let delta =
            Delta { index: MetadataIndex(9), controller_epoch: ControllerEpoch(3), records: samples() };
        assert_eq!(watch_message(delta_message(&delta)).unwrap(), Message::Delta(delta));
    }

    #[test]
    fn malformed_metadata_is_named() {
        let say = |record: Option<pb::metadata_record::Record>| {
            Record::try_from(pb::MetadataRecord { record }).unwrap_err().to_string()
        };
        use pb::metadata_record::Record as P;
        assert_eq!(say(None), "metadata record of an unknown kind: written by a newer version");
        let topic_id = Bytes::from_static(b"short");
        assert_eq!(
            say(Some(P::TopicRemoved(pb::TopicRemoved { topic_id }))),
            "topic_id has 5 bytes instead of 16"
        );
        let mut created = pb::TopicCreated { name: "a/b".into(), topic_id: Bytes::from_static(&[0; 16]) };
        assert_eq!(say(Some(P::TopicCreated(created.clone()))), "bad topic name");
        created.name = "..".into();
        assert_eq!(say(Some(P::TopicCreated(created))), "bad topic name");
        let broker = pb::RegisterBroker {
            incarnation_id: Bytes::from_static(&[0; 16]),
            kafka_port: 70_000,
            ..Default::default()
        };
        assert_eq!(say(Some(P::RegisterBroker(broker))), "kafka_port is 70000");
        let broker = pb::RegisterBroker {
            incarnation_id: Bytes::from_static(&[0; 16]),
            directory_ids: vec![Bytes::from_static(&[1; 16]), Bytes::from_static(&[2; 15])],
            ..Default::default()
        };
        assert_eq!(say(Some(P::RegisterBroker(broker))), "directory_ids has 15 bytes instead of 16");
        let change = pb::ConfigChange { resource: 2, name: "one".into(), ..Default::default() };
        assert_eq!(say(Some(P::ConfigChange(change))), "\"one\" is not a broker id");
        let change = pb::ConfigChange { resource: 9, ..Default::default() };
        assert_eq!(say(Some(P::ConfigChange(change))), "resource is 9");
        assert!(decode_batch(Bytes::from_static(b"\xff\xff\xff")).is_err());
        assert!(watch_message(pb::WatchMetadataResponse::default()).is_err());
    }
}
