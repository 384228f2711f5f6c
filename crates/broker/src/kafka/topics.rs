//! CreateTopics, DeleteTopics, CreatePartitions: read here, decided by the controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use semel_kafka_wire::{
    ErrorCode, KString,
    messages::{
        create_partitions::{CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult},
        create_topics::{
            CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest,
            CreateTopicsResponse,
        },
        delete_topics::{DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse},
    },
};
use semel_model::{TopicId, TopicName};
use semel_proto::{internal::v1 as internal, v1};

use crate::{failure::Failure, node::Node, ops::topics::within};

/// The code and text of an item's error, for responses that carry both.
fn parts(error: Option<v1::Error>) -> (ErrorCode, Option<KString>) {
    match error {
        None => (ErrorCode::None, None),
        Some(error) => {
            let failure = Failure::from(error);
            (failure.code, Some(KString::from(failure.message)))
        }
    }
}

/// Kafka refuses every mention of a name that one request names twice.
fn duplicates<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            twice.insert(name.to_owned());
        }
    }
    twice
}

fn new_topic(topic: &CreatableTopic) -> Result<v1::NewTopic, Failure> {
    let assigned = !topic.assignments.is_empty();
    if assigned && (topic.num_partitions != -1 || topic.replication_factor != -1) {
        return Err(Failure::new(
            ErrorCode::InvalidRequest,
            "with a replica assignment, partition count and replication factor must be -1",
        ));
    }
    // On Kafka's wire -1 asks for the default and 0 is wrong; in gRPC 0 is the default.
    let count = |value: i32, code: ErrorCode, what: &str| match value {
        -1 => Ok(0),
        1.. => Ok(value),
        _ => Err(Failure::new(code, format!("{what} must be -1 (the default) or at least 1, not {value}"))),
    };
    Ok(v1::NewTopic {
        name: topic.name.to_string(),
        partitions: count(topic.num_partitions, ErrorCode::InvalidPartitions, "number of partitions")?,
        replication_factor: count(
            i32::from(topic.replication_factor),
            ErrorCode::InvalidReplicationFactor,
            "replication factor",
        )?,
        configs: configs(topic)?,
        assignments: topic
            .assignments
            .iter()
            .map(|one| v1::ReplicaAssignment {
                partition: one.partition_index,
                brokers: one.broker_ids.clone(),
            })
            .collect(),
    })
}

fn configs(topic: &CreatableTopic) -> Result<BTreeMap<String, String>, Failure> {
    let entries = topic.configs.iter().map(|config| match &config.value {
        Some(value) => Ok((config.name.to_string(), value.to_string())),
        None => Err(Failure::new(ErrorCode::InvalidConfig, format!("null value for {:?}", config.name))),
    });
    entries.collect()
}

pub(crate) async fn create_topics(node: &Node, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let twice = duplicates(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut results: Vec<CreatableTopicResult> = Vec::with_capacity(request.topics.len());
    let mut wanted = Vec::new();
    let failed = |name: &KString, failure: Failure| CreatableTopicResult {
        name: name.clone(),
        error_code: failure.code,
        error_message: Some(KString::from(failure.message)),
        ..Default::default()
    };
    for topic in &request.topics {
        let checked = if twice.contains(topic.name.as_str()) {
            Err(Failure::new(ErrorCode::InvalidRequest, "the request names this topic more than once"))
        } else {
            new_topic(topic)
        };
        match checked {
            Ok(new) => wanted.push((topic, new)),
            Err(failure) => {
                if !results.iter().any(|result| result.name == topic.name) {
                    results.push(failed(&topic.name, failure));
                }
            }
        }
    }
    if wanted.is_empty() {
        return CreateTopicsResponse { topics: results, ..Default::default() };
    }
    let carried = internal::CreateTopicsRequest {
        topics: wanted.iter().map(|(_, new)| new.clone()).collect(),
        validate_only: request.validate_only,
    };
    match node.create_topics(carried, within(request.timeout_ms)).await {
        Err(failure) => results.extend(wanted.iter().map(|(topic, _)| failed(&topic.name, failure.clone()))),
        Ok(response) => {
            let asked: BTreeMap<&str, &v1::NewTopic> =
                wanted.iter().map(|(topic, new)| (topic.name.as_str(), new)).collect();
            for result in response.results {
                results.push(created(node, result, &asked));
            }
        }
    }
    CreateTopicsResponse { topics: results, ..Default::default() }
}

fn created(
    node: &Node,
    result: v1::create_topics_response::Result,
    asked: &BTreeMap<&str, &v1::NewTopic>,
) -> CreatableTopicResult {
    let name = KString::from(&*result.name);
    let (error_code, error_message) = parts(result.error);
    if error_code != ErrorCode::None {
        return CreatableTopicResult { name, error_code, error_message, ..Default::default() };
    }
    let own = asked.get(&*result.name).into_iter().flat_map(|new| &new.configs);
    let configs = node.entries_with(
        &own.map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str()))).collect(),
    );
    CreatableTopicResult {
        name,
        topic_id: TopicId::parse(&result.topic_id).unwrap_or(TopicId::ZERO),
        error_code,
        num_partitions: result.partitions,
        replication_factor: i16::try_from(result.replication_factor).unwrap_or(i16::MAX),
        configs: Some(
            configs
                .into_iter()
                .map(|entry| CreatableTopicConfigs {
                    name: KString::from_static(entry.resolved.def.name),
                    read_only: entry.read_only,
                    config_source: entry.resolved.source as i8,
                    value: Some(KString::from(entry.resolved.value)),
                    is_sensitive: false,
                })
                .collect(),
        ),
        ..Default::default()
    }
}

/// Creates topics that a Metadata request asked for, with the cluster's defaults. Failures show in the answer.
pub(crate) async fn auto_create(node: &Node, names: Vec<TopicName>) {
    let carried = internal::CreateTopicsRequest {
        topics: names
            .iter()
            .map(|name| v1::NewTopic { name: name.as_str().to_owned(), ..Default::default() })
            .collect(),
        validate_only: false,
    };
    match node.create_topics(carried, within(0)).await {
        Ok(response) => {
            for result in response.results {
                // Two clients may ask at once: one of them creates it.
                if let Some(error) =
                    result.error.filter(|error| error.error_code() != v1::ErrorCode::TopicAlreadyExists)
                {
                    tracing::warn!(topic = result.name, %error, "cannot create topic on demand");
                }
            }
        }
        Err(error) => tracing::warn!(?names, %error, "cannot create topics on demand"),
    }
}

pub(crate) async fn delete_topics(
    node: &Node,
    request: DeleteTopicsRequest,
    version: i16,
) -> DeleteTopicsResponse {
    use internal::delete_topics_request::{Topic, topic::By};
    let topics: Vec<Topic> = if version >= 6 {
        request
            .topics
            .iter()
            .map(|topic| Topic {
                by: Some(match &topic.name {
                    Some(name) => By::Name(name.to_string()),
                    None => By::TopicId(topic.topic_id.to_bytes().to_vec().into()),
                }),
            })
            .collect()
    } else {
        request.topic_names.iter().map(|name| Topic { by: Some(By::Name(name.to_string())) }).collect()
    };
    let by_id = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map_or(TopicId::ZERO, TopicId::from_bytes);
    let responses = match node
        .delete_topics(internal::DeleteTopicsRequest { topics: topics.clone() }, within(request.timeout_ms))
        .await
    {
        Ok(response) => response
            .results
            .into_iter()
            .map(|result| {
                let (error_code, error_message) = parts(result.error);
                DeletableTopicResult {
                    name: (!result.name.is_empty() || version < 6).then(|| KString::from(&*result.name)),
                    topic_id: by_id(&result.topic_id),
                    error_code,
                    error_message,
                }
            })
            .collect(),
        Err(failure) => topics
            .into_iter()
            .map(|topic| {
                let (name, topic_id) = match topic.by {
                    Some(By::Name(name)) => (Some(KString::from(name)), TopicId::ZERO),
                    Some(By::TopicId(id)) => (None, by_id(&id)),
                    None => (None, TopicId::ZERO),
                };
                DeletableTopicResult {
                    name,
                    topic_id,
                    error_code: failure.code,
                    error_message: Some(KString::from(&*failure.message)),
                }
            })
            .collect(),
    };
    DeleteTopicsResponse { responses, ..Default::default() }
}

pub(crate) async fn create_partitions(
    node: &Node,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let twice = duplicates(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut results: Vec<CreatePartitionsTopicResult> = twice
        .iter()
        .map(|name| CreatePartitionsTopicResult {
            name: KString::from(&**name),
            error_code: ErrorCode::InvalidRequest,
            error_message: Some(KString::from_static("the request names this topic more than once")),
        })
        .collect();
    let image = node.metadata.image();
    let topics: Vec<_> = request
        .topics
        .iter()
        .filter(|topic| !twice.contains(topic.name.as_str()))
        .map(|topic| {
            // Kafka's assignment lists only the new partitions, in order after those that exist.
            let existing = image.topic_by_name(&topic.name).map_or(0, semel_metadata::Topic::partition_count);
            internal::create_partitions_request::Topic {
                name: topic.name.to_string(),
                count: topic.count,
                assignments: (existing..)
                    .zip(topic.assignments.iter().flatten())
                    .map(|(partition, one)| v1::ReplicaAssignment {
                        partition,
                        brokers: one.broker_ids.clone(),
                    })
                    .collect(),
            }
        })
        .collect();
    if !topics.is_empty() {
        let carried = internal::CreatePartitionsRequest {
            topics: topics.clone(),
            validate_only: request.validate_only,
        };
        match node.create_partitions(carried, within(request.timeout_ms)).await {
            Ok(response) => results.extend(response.results.into_iter().map(|result| {
                let (error_code, error_message) = parts(result.error);
                CreatePartitionsTopicResult { name: KString::from(&*result.name), error_code, error_message }
            })),
            Err(failure) => results.extend(topics.into_iter().map(|topic| CreatePartitionsTopicResult {
                name: KString::from(topic.name),
                error_code: failure.code,
                error_message: Some(KString::from(&*failure.message)),
            })),
        }
    }
    CreatePartitionsResponse { results, ..Default::default() }
}
