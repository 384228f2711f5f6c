//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

use semel_kafka_wire::{
    ErrorCode, KString,
    messages::{
        alter_configs::{
            AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse, AlterableConfig,
        },
        describe_configs::{
            DescribeConfigsRequest, DescribeConfigsResourceResult, DescribeConfigsResponse,
            DescribeConfigsResult, DescribeConfigsSynonym,
        },
        incremental_alter_configs::{
            AlterConfigsResourceResponse as IncrementalResponse, IncrementalAlterConfigsRequest,
            IncrementalAlterConfigsResponse,
        },
    },
};
use semel_proto::{
    internal::v1 as internal,
    v1::{
        self,
        alter_configs_request::{Change, change::Operation},
    },
};

use crate::{
    failure::Failure,
    node::Node,
    ops::{configs::Entry, topics::within},
};

/// Kafka's numbers of the resource types that have configurations here.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn resource_type(kafka: i8) -> Result<v1::ResourceType, Failure> {
    match kafka {
        TOPIC => Ok(v1::ResourceType::Topic),
        BROKER => Ok(v1::ResourceType::Broker),
        other => Err(Failure::new(
            ErrorCode::InvalidRequest,
            format!("resource type {other} has no configuration here: use 2 (topic) or 4 (broker)"),
        )),
    }
}

pub(crate) fn describe_configs(node: &Node, request: &DescribeConfigsRequest) -> DescribeConfigsResponse {
    let results = request
        .resources
        .iter()
        .map(|resource| {
            let entries = resource_type(resource.resource_type).and_then(|kind| match kind {
                v1::ResourceType::Topic => node.topic_config_entries(&resource.resource_name),
                v1::ResourceType::Broker | v1::ResourceType::Unspecified => {
                    node.broker_config_entries(&resource.resource_name)
                }
            });
            let mut result = DescribeConfigsResult {
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                ..Default::default()
            };
            match entries {
                Err(failure) => {
                    result.error_code = failure.code;
                    result.error_message = Some(KString::from(failure.message));
                }
                Ok(entries) => {
                    // Kafka takes a null or an empty list of keys for "all".
                    let keys = resource.configuration_keys.as_deref().filter(|keys| !keys.is_empty());
                    result.configs = entries
                        .into_iter()
                        .filter(|entry| {
                            keys.is_none_or(|keys| keys.iter().any(|key| *key == entry.resolved.def.name))
                        })
                        .map(|entry| describe(entry, request.include_synonyms, request.include_documentation))
                        .collect();
                }
            }
            result
        })
        .collect();
    DescribeConfigsResponse { results, ..Default::default() }
}

fn describe(entry: Entry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult {
    let Entry { resolved, read_only } = entry;
    DescribeConfigsResourceResult {
        name: KString::from_static(resolved.def.name),
        value: Some(KString::from(resolved.value)),
        read_only,
        config_source: resolved.source as i8,
        is_sensitive: false,
        config_type: resolved.def.kind.kafka_type(),
        documentation: documentation.then(|| KString::from_static(resolved.def.doc)),
        synonyms: if synonyms {
            resolved
                .synonyms
                .into_iter()
                .map(|synonym| DescribeConfigsSynonym {
                    name: KString::from_static(synonym.name),
                    value: Some(KString::from(synonym.value)),
                    source: synonym.source as i8,
                })
                .collect()
        } else {
            Vec::new()
        },
    }
}

/// One resource's changes, read from either request.
type Wanted = Result<internal::alter_configs_request::Resource, Failure>;

/// What became of one resource: type and name as asked, and the error if any.
struct Altered {
    kind: i8,
    name: KString,
    failure: Option<Failure>,
}

/// Carries what could be read to the controller; answers in the order of the request.
async fn alter(node: &Node, wanted: Vec<(i8, KString, Wanted)>, validate_only: bool) -> Vec<Altered> {
    let resources: Vec<_> =
        wanted.iter().filter_map(|(_, _, resource)| resource.as_ref().ok()).cloned().collect();
    let mut outcomes = if resources.is_empty() {
        Vec::new()
    } else {
        let count = resources.len();
        let carried = internal::AlterConfigsRequest { resources, validate_only };
        match node.alter_configs(carried, within(30_000)).await {
            Ok(response) => {
                response.results.into_iter().map(|result| result.error.map(Failure::from)).collect()
            }
            Err(failure) => vec![Some(failure); count],
        }
    }
    .into_iter();
    wanted
        .into_iter()
        .map(|(kind, name, resource)| {
            let failure = match resource {
                Err(failure) => Some(failure),
                Ok(_) => outcomes.next().unwrap_or_else(|| {
                    Some(Failure::new(ErrorCode::UnknownServerError, "the controller left this resource out"))
                }),
            };
            Altered { kind, name, failure }
        })
        .collect()
}

fn parts(failure: Option<Failure>) -> (ErrorCode, Option<KString>) {
    failure.map_or((ErrorCode::None, None), |failure| (failure.code, Some(KString::from(failure.message))))
}

/// One resource of a request, with what was read of its changes.
fn wanted(
    kind: i8,
    name: KString,
    replace: bool,
    changes: Result<Vec<Change>, Failure>,
) -> (i8, KString, Wanted) {
    let resource = changes.and_then(|changes| {
        Ok(internal::alter_configs_request::Resource {
            r#type: resource_type(kind)?.into(),
            name: name.to_string(),
            changes,
            replace,
        })
    });
    (kind, name, resource)
}

fn change(name: &KString, operation: Operation, value: Option<&KString>) -> Result<Change, Failure> {
    if value.is_none() && operation != Operation::Delete {
        return Err(Failure::new(ErrorCode::InvalidRequest, format!("null value for {name:?}")));
    }
    let value = value.map(KString::to_string).unwrap_or_default();
    Ok(Change { name: name.to_string(), operation: operation.into(), value })
}

pub(crate) async fn alter_configs(node: &Node, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let resources = request
        .resources
        .into_iter()
        .map(|resource| {
            let set = |config: &AlterableConfig| change(&config.name, Operation::Set, config.value.as_ref());
            let changes = resource.configs.iter().map(set).collect();
            wanted(resource.resource_type, resource.resource_name, true, changes)
        })
        .collect();
    let responses = alter(node, resources, request.validate_only)
        .await
        .into_iter()
        .map(|altered| {
            let (error_code, error_message) = parts(altered.failure);
            AlterConfigsResourceResponse {
                error_code,
                error_message,
                resource_type: altered.kind,
                resource_name: altered.name,
            }
        })
        .collect();
    AlterConfigsResponse { responses, ..Default::default() }
}

pub(crate) async fn incremental_alter_configs(
    node: &Node,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let resources = request
        .resources
        .into_iter()
        .map(|resource| {
            let changes = resource.configs.iter().map(|config| {
                let operation = match config.config_operation {
                    0 => Operation::Set,
                    1 => Operation::Delete,
                    2 => Operation::Append,
                    3 => Operation::Subtract,
                    other => {
                        return Err(Failure::new(
                            ErrorCode::InvalidRequest,
                            format!("unknown config operation {other}"),
                        ));
                    }
                };
                change(&config.name, operation, config.value.as_ref())
            });
            let changes = changes.collect();
            wanted(resource.resource_type, resource.resource_name, false, changes)
        })
        .collect();
    let responses = alter(node, resources, request.validate_only)
        .await
        .into_iter()
        .map(|altered| {
            let (error_code, error_message) = parts(altered.failure);
            IncrementalResponse {
                error_code,
                error_message,
                resource_type: altered.kind,
                resource_name: altered.name,
            }
        })
        .collect();
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}
