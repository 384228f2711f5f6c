//! Every message and version, compared with an implementation that is not ours.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey as TheirKey, RequestKind, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable};

use crate::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, Request, Response, SUPPORTED,
};
use crate::read::Reader;
use crate::testing::TestRng;
use crate::write::{Chunk, Writer};
use crate::{ApiKey, ApiSupport};

/// Values for each message and version.
const ROUNDS: u64 = 40;

/// Versions that the oracle names but cannot decode.
const THEIRS_LACK: &[(ApiKey, i16)] = &[
    (ApiKey::OffsetCommit, 10),
    (ApiKey::OffsetFetch, 10),
    (ApiKey::InitProducerId, 6),
    (ApiKey::ListOffsets, 11),
];

fn whole(w: Writer) -> Bytes {
    let mut out = BytesMut::new();
    for chunk in w.into_chunks() {
        match chunk {
            Chunk::Bytes(bytes) => out.extend_from_slice(&bytes),
            Chunk::External(external) => panic!("external payload {external:?}"),
        }
    }
    out.freeze()
}

fn seed(api: &ApiSupport, version: i16, round: u64) -> TestRng {
    TestRng::new((api.key.code() as u64) << 32 | (version as u64) << 16 | round)
}

fn their_key(api: &ApiSupport) -> TheirKey {
    TheirKey::try_from(api.key.code()).expect("the oracle has all our APIs")
}

/// Versions younger than the oracle. They are checked against golden bytes instead (`tests/golden.rs`).
fn theirs_lack(api: &ApiSupport, version: i16) -> bool {
    let theirs = their_key(api).valid_versions();
    !(theirs.min..=theirs.max).contains(&version) || THEIRS_LACK.contains(&(api.key, version))
}

#[test]
fn what_we_write_we_read() {
    for api in &SUPPORTED {
        for version in api.min..=api.max {
            for round in 0..ROUNDS {
                let mut g = seed(api, version, round);
                let request = Request::arbitrary(api.key, &mut g, version).unwrap();
                let mut w = Writer::new();
                request.encode(&mut w, version).unwrap();
                let bytes = whole(w);
                assert_eq!(Request::decode(api.key, version, &mut Reader::new(bytes)), Ok(request));
                let response = Response::arbitrary(api.key, &mut g, version).unwrap();
                let mut w = Writer::new();
                response.encode(&mut w, version).unwrap();
                let bytes = whole(w);
                assert_eq!(Response::decode(api.key, version, &mut Reader::new(bytes)), Ok(response));
            }
        }
    }
}

#[test]
fn the_oracle_reads_our_requests_and_writes_the_same_bytes() {
    let mut compared = 0;
    for api in &SUPPORTED {
        for version in (api.min..=api.max).filter(|version| !theirs_lack(api, *version)) {
            for round in 0..ROUNDS {
                let ours = Request::arbitrary(api.key, &mut seed(api, version, round), version).unwrap();
                let mut w = Writer::new();
                ours.encode(&mut w, version).unwrap();
                let bytes = whole(w);
                let mut rest = bytes.clone();
                let theirs = RequestKind::decode(their_key(api), &mut rest, version)
                    .unwrap_or_else(|e| panic!("{} {version}: {e:#}: {ours:?}", api.key));
                assert!(rest.is_empty(), "{} {version}: {} bytes unread", api.key, rest.len());
                let mut back = BytesMut::new();
                theirs.encode(&mut back, version).unwrap();
                assert_eq!(back, bytes, "{} {version}: {ours:?}", api.key);
                compared += 1;
            }
        }
    }
    assert!(compared > 150 * ROUNDS, "{compared}");
}

#[test]
fn the_oracle_reads_our_responses_and_writes_the_same_bytes() {
    let mut compared = 0;
    for api in &SUPPORTED {
        for version in (api.min..=api.max).filter(|version| !theirs_lack(api, *version)) {
            for round in 0..ROUNDS {
                let ours = Response::arbitrary(api.key, &mut seed(api, version, round), version).unwrap();
                let mut w = Writer::new();
                ours.encode(&mut w, version).unwrap();
                let bytes = whole(w);
                let mut rest = bytes.clone();
                let theirs = ResponseKind::decode(their_key(api), &mut rest, version)
                    .unwrap_or_else(|e| panic!("{} {version}: {e:#}: {ours:?}", api.key));
                assert!(rest.is_empty(), "{} {version}: {} bytes unread", api.key, rest.len());
                let mut back = BytesMut::new();
                theirs.encode(&mut back, version).unwrap();
                assert_eq!(back, bytes, "{} {version}: {ours:?}", api.key);
                compared += 1;
            }
        }
    }
    assert!(compared > 150 * ROUNDS, "{compared}");
}

#[test]
fn versions_and_headers_agree_with_the_oracle() {
    for api in &SUPPORTED {
        let theirs = their_key(api);
        assert_eq!(theirs.valid_versions().min, api.min, "{}", api.key);
        assert!(theirs.valid_versions().max <= api.max, "{}", api.key);
        for version in (api.min..=api.max).filter(|version| !theirs_lack(api, *version)) {
            let flexible = crate::flexible(api.key, version);
            assert_eq!(theirs.request_header_version(version), if flexible { 2 } else { 1 });
            let response = if flexible && api.key != ApiKey::ApiVersions { 1 } else { 0 };
            assert_eq!(theirs.response_header_version(version), response);
        }
    }
}

#[test]
fn the_embedded_consumer_protocol_agrees_with_the_oracle() {
    use kafka_protocol::messages::ConsumerProtocolAssignment as TheirAssignment;
    use kafka_protocol::messages::ConsumerProtocolSubscription as TheirSubscription;
    for version in 0..=3 {
        for round in 0..ROUNDS {
            let g = &mut TestRng::new(round);
            let mut w = Writer::new();
            ConsumerProtocolSubscription::arbitrary(g, version).encode(&mut w, version).unwrap();
            let bytes = whole(w);
            let mut back = BytesMut::new();
            TheirSubscription::decode(&mut bytes.clone(), version)
                .unwrap()
                .encode(&mut back, version)
                .unwrap();
            assert_eq!(back, bytes);

            let mut w = Writer::new();
            ConsumerProtocolAssignment::arbitrary(g, version).encode(&mut w, version).unwrap();
            let bytes = whole(w);
            let mut back = BytesMut::new();
            TheirAssignment::decode(&mut bytes.clone(), version).unwrap().encode(&mut back, version).unwrap();
            assert_eq!(back, bytes);
        }
    }
}

#[test]
fn frames_agree_with_the_oracle() {
    use kafka_protocol::messages::{RequestHeader as TheirHeader, ResponseHeader as TheirResponseHeader};
    for api in &SUPPORTED {
        for version in (api.min..=api.max).filter(|version| !theirs_lack(api, *version)) {
            let g = &mut seed(api, version, 0);
            let request = Request::arbitrary(api.key, g, version).unwrap();
            let frame = crate::encode_request(77, Some("me".into()), version, &request).unwrap();
            let mut bytes = frame.assemble(|_| Bytes::new()).unwrap();
            assert_eq!(bytes.len(), frame.wire_len());
            assert_eq!(bytes.split_to(4), ((frame.wire_len() - 4) as u32).to_be_bytes()[..]);
            let (header, body) = crate::decode_any(bytes.clone()).unwrap();
            assert_eq!((header.key, header.version, header.correlation_id), (api.key, version, 77));
            assert_eq!(header.client_id.unwrap(), "me");
            assert_eq!(body, request);
            let theirs =
                TheirHeader::decode(&mut bytes, their_key(api).request_header_version(version)).unwrap();
            assert_eq!((theirs.correlation_id, theirs.client_id.as_deref()), (77, Some("me")));
            RequestKind::decode(their_key(api), &mut bytes, version).unwrap();

            let response = Response::arbitrary(api.key, g, version).unwrap();
            let frame = crate::encode_response(-5, version, &response).unwrap();
            let mut bytes = frame.assemble(|_| Bytes::new()).unwrap().slice(4..);
            assert_eq!(crate::decode_response(bytes.clone(), api.key, version), Ok((-5, response)));
            let header_version = their_key(api).response_header_version(version);
            assert_eq!(TheirResponseHeader::decode(&mut bytes, header_version).unwrap().correlation_id, -5);
            ResponseKind::decode(their_key(api), &mut bytes, version).unwrap();
        }
    }
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    use kafka_protocol::messages::{MetadataRequest, metadata_request::MetadataRequestTopic};
    let theirs = MetadataRequest::default()
        .with_topics(Some(vec![
            MetadataRequestTopic::default().with_unknown_tagged_field(900, Bytes::from_static(b"inner")),
        ]))
        .with_unknown_tagged_field(5, Bytes::from_static(b"outer"));
    let mut bytes = BytesMut::new();
    theirs.encode(&mut bytes, 12).unwrap();
    let Ok(Request::Metadata(ours)) = Request::decode(ApiKey::Metadata, 12, &mut Reader::new(bytes.freeze()))
    else {
        panic!("not decoded");
    };
    assert_eq!(ours.topics.unwrap().len(), 1);
}
