//! The answer to ApiVersions, which comes before anything else a client asks.

use semel_kafka_wire::{
    ApiKey, ErrorCode, KString, PRODUCE_ADVERTISED_MIN,
    messages::{
        ApiVersionsRequest, ApiVersionsResponse,
        api_versions::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey},
    },
};

use crate::backend::{ApiRange, ClientSoftware, NodeInfo};

/// The first version that says which library asks.
const NAMES_SOFTWARE_FROM: i16 = 3;
/// Before this version the Java client fails on a feature whose smallest level is 0 (KIP-1022).
const FEATURE_ZERO_FROM: i16 = 4;

/// The APIs a gateway shows: the backend's, and ApiVersions; by key, each once.
pub(crate) fn advertised(mut apis: Vec<ApiRange>) -> Vec<ApiRange> {
    apis.retain(|api| api.key != ApiKey::ApiVersions);
    apis.extend(ApiRange::all(ApiKey::ApiVersions));
    apis.sort_by_key(|api| api.key);
    apis.dedup_by_key(|api| api.key);
    apis
}

/// The answer, and who the client says it is.
pub(crate) fn answer(
    request: &ApiVersionsRequest,
    version: i16,
    apis: &[ApiRange],
    node: &NodeInfo,
) -> (ApiVersionsResponse, Option<ClientSoftware>) {
    let mut software = None;
    if version >= NAMES_SOFTWARE_FROM {
        let (name, number) = (&request.client_software_name, &request.client_software_version);
        if !is_software_word(name) || !is_software_word(number) {
            return (
                ApiVersionsResponse { error_code: ErrorCode::InvalidRequest, ..Default::default() },
                None,
            );
        }
        software = Some(ClientSoftware { name: name.as_str().into(), version: number.as_str().into() });
    }
    if is_for_another(request, node) {
        let response =
            ApiVersionsResponse { error_code: ErrorCode::RebootstrapRequired, ..Default::default() };
        return (response, software);
    }
    let api_keys = apis
        .iter()
        .map(|api| ApiVersion {
            api_key: api.key.code(),
            min_version: if api.key == ApiKey::Produce { PRODUCE_ADVERTISED_MIN } else { api.min },
            max_version: api.max,
        })
        .collect();
    let supported_features = node
        .supported_features
        .iter()
        .filter(|feature| feature.min > 0 || version >= FEATURE_ZERO_FROM)
        .map(|feature| SupportedFeatureKey {
            name: KString::from_static(feature.name),
            min_version: feature.min,
            max_version: feature.max,
        })
        .collect();
    let finalized_features = node
        .finalized_features
        .iter()
        .map(|feature| FinalizedFeatureKey {
            name: KString::from_static(feature.name),
            max_version_level: feature.level,
            min_version_level: feature.level,
        })
        .collect();
    let response = ApiVersionsResponse {
        api_keys,
        supported_features,
        finalized_features,
        finalized_features_epoch: node.finalized_features_epoch,
        ..Default::default()
    };
    (response, software)
}

/// Whether the client names a cluster or node that this isn't: an address that now belongs to somebody else.
fn is_for_another(request: &ApiVersionsRequest, node: &NodeInfo) -> bool {
    let other_cluster = match (&request.cluster_id, &node.cluster_id) {
        (Some(wanted), Some(own)) => wanted.as_str() != own,
        _ => false,
    };
    let other_node = match (request.node_id, node.node_id) {
        (wanted @ 0.., Some(own)) => wanted != own,
        _ => false,
    };
    other_cluster || other_node
}

/// KIP-511: letters, digits, `-` and `.`, beginning and ending with a letter or digit.
fn is_software_word(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{FeatureLevel, FeatureRange};

    fn node() -> NodeInfo {
        NodeInfo {
            cluster_id: Some("c1".to_owned()),
            node_id: Some(3),
            supported_features: vec![
                FeatureRange { name: "group.version", min: 0, max: 1 },
                FeatureRange { name: "metadata.version", min: 7, max: 29 },
            ],
            finalized_features: vec![FeatureLevel { name: "group.version", level: 1 }],
            finalized_features_epoch: 12,
        }
    }

    fn request(name: &'static str) -> ApiVersionsRequest {
        ApiVersionsRequest {
            client_software_name: KString::from_static(name),
            client_software_version: KString::from_static("4.0.0"),
            ..Default::default()
        }
    }

    #[test]
    fn apis_are_sorted_and_hold_api_versions_and_produce_begins_at_zero() {
        let apis = advertised(vec![
            ApiRange::all(ApiKey::Metadata).unwrap(),
            ApiRange { key: ApiKey::Produce, min: 3, max: 13 },
        ]);
        let keys: Vec<ApiKey> = apis.iter().map(|api| api.key).collect();
        assert_eq!(keys, [ApiKey::Produce, ApiKey::Metadata, ApiKey::ApiVersions]);
        let (response, software) = answer(&request("franz-go"), 3, &apis, &node());
        assert_eq!((response.api_keys[0].min_version, response.api_keys[0].max_version), (0, 13));
        assert_eq!(&*software.unwrap().name, "franz-go");
    }

    #[test]
    fn features_from_level_zero_are_for_clients_that_understand_them() {
        let names = |version| {
            let (response, _) = answer(&request("x"), version, &[], &node());
            assert_eq!(response.finalized_features_epoch, 12);
            response.supported_features.iter().map(|feature| feature.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(3), ["metadata.version"]);
        assert_eq!(names(4), ["group.version", "metadata.version"]);
    }

    #[test]
    fn bad_names_and_wrong_addresses_are_told() {
        for bad in ["", "-x", "x y", "x-", "é"] {
            let (response, software) = answer(&request(bad), 3, &[], &node());
            assert_eq!((response.error_code, software), (ErrorCode::InvalidRequest, None), "{bad}");
            assert_eq!(answer(&request(bad), 2, &[], &node()).0.error_code, ErrorCode::None);
        }
        let check = |cluster: Option<&'static str>, node_id| {
            let request =
                ApiVersionsRequest { cluster_id: cluster.map(KString::from_static), node_id, ..request("x") };
            answer(&request, 5, &[], &node()).0.error_code
        };
        assert_eq!(check(Some("c1"), 3), ErrorCode::None);
        assert_eq!(check(None, -1), ErrorCode::None);
        assert_eq!(check(Some("c2"), 3), ErrorCode::RebootstrapRequired);
        assert_eq!(check(Some("c1"), 4), ErrorCode::RebootstrapRequired);
    }
}
