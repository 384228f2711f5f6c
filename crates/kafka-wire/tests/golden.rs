//! Bytes that Kafka's own client (4.4) reads and writes the same, one for each message and version: we must too.
//!
//! The file is the output of `examples/golden.rs`, checked by `tests/golden/Verify.java`. It does not depend on how
//! test values are drawn, so it stays as it is when a schema gains a version; new versions get new lines.

use std::collections::BTreeSet;

use bytes::Bytes;
use semel_kafka_wire::{ApiKey, Chunk, ErrorCode, Reader, Request, Response, SUPPORTED, Writer};

const GOLDEN: &str = include_str!("golden/messages.txt");

fn unhex(text: &str) -> Bytes {
    let digit = |c: u8| (c as char).to_digit(16).expect("hex digits") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn whole(w: Writer) -> Bytes {
    let bytes = |chunk| match chunk {
        Chunk::Bytes(bytes) => bytes,
        Chunk::External(external) => panic!("external payload {external:?}"),
    };
    w.into_chunks().into_iter().flat_map(bytes).collect()
}

#[test]
fn every_message_and_version_keeps_its_bytes() {
    let mut seen = BTreeSet::new();
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, version, kind, hex] = words[..] else { panic!("{line}") };
        let key = *ApiKey::ALL.iter().find(|key| key.name() == name).unwrap();
        let version: i16 = version.parse().unwrap();
        let bytes = unhex(hex);
        let mut r = Reader::new(bytes.clone());
        let mut w = Writer::new();
        if kind == "request" {
            Request::decode(key, version, &mut r).unwrap().encode(&mut w, version).unwrap();
        } else {
            Response::decode(key, version, &mut r).unwrap().encode(&mut w, version).unwrap();
        }
        assert_eq!(whole(w), bytes, "{name} {version} {kind}");
        seen.insert((key, version, kind == "request"));
    }
    for api in &SUPPORTED {
        for version in api.min..=api.max {
            assert!(seen.contains(&(api.key, version, true)), "{} {version} has no golden request", api.key);
            assert!(
                seen.contains(&(api.key, version, false)),
                "{} {version} has no golden response",
                api.key
            );
        }
    }
}

#[test]
fn a_produce_frame_as_librdkafka_sends_it() {
    use semel_kafka_wire::messages::ProduceRequest;
    use semel_kafka_wire::messages::produce::{PartitionProduceData, TopicProduceData};
    // Version 7: the last before acks per record errors; not flexible.
    let body = ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: "t".into(),
            partition_data: vec![PartitionProduceData {
                index: 2,
                records: Some(Bytes::from_static(b"\xca\xfe")),
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let frame = semel_kafka_wire::encode_request(9, Some("rdkafka".into()), 7, &body.clone().into()).unwrap();
    let want = concat!(
        "0000002e", // length
        "0000",     // key
        "0007",     // version
        "00000009", // correlation id
        "000772646b61666b61",
        "ffff",     // no transactional id
        "ffff",     // acks
        "00007530", // timeout
        "00000001",
        "000174",
        "00000001",
        "00000002", // partition
        "00000002", // bytes of records
        "cafe",
    );
    let bytes = frame.assemble(|_| Bytes::new()).unwrap();
    assert_eq!(bytes, unhex(want));
    let (header, request) = semel_kafka_wire::decode_any(bytes.slice(4..)).unwrap();
    assert_eq!((header.key, header.correlation_id), (ApiKey::Produce, 9));
    assert_eq!(request, Request::Produce(body));
}

#[test]
fn a_fetch_response_of_version_12_with_a_diverging_epoch() {
    use semel_kafka_wire::messages::FetchResponse;
    use semel_kafka_wire::messages::fetch::{EpochEndOffset, FetchableTopicResponse, PartitionData};
    use semel_kafka_wire::{External, Records};
    let body = FetchResponse {
        session_id: 1,
        responses: vec![FetchableTopicResponse {
            topic: "t".into(),
            partitions: vec![PartitionData {
                partition_index: 3,
                high_watermark: 10,
                diverging_epoch: EpochEndOffset { epoch: 4, end_offset: 8 },
                records: Records::External(External { token: 1, len: 300 }),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let frame = semel_kafka_wire::encode_response(6, 12, &body.into()).unwrap();
    let [Chunk::Bytes(head), Chunk::External(range), Chunk::Bytes(tail)] = frame.chunks() else {
        panic!("{frame:?}")
    };
    assert_eq!(range.len, 300);
    let want = concat!(
        "00000006", // correlation id
        "00",       // the header's tags
        "00000000", // throttle time
        "0000",     // error
        "00000001", // session
        "02",       // one topic
        "0274",
        "02", // one partition
        "00000003",
        "0000",             // error
        "000000000000000a", // high watermark
        "ffffffffffffffff", // last stable offset
        "ffffffffffffffff", // log start offset
        "01",               // no aborted transactions
        "ffffffff",         // no preferred replica
        "ad02",             // 300 bytes of records
    );
    assert_eq!(head[4..], unhex(want));
    let want = concat!(
        "01",       // one tagged field in the partition
        "000d",     // tag 0, 13 bytes
        "00000004", // epoch
        "0000000000000008",
        "00", // the epoch's tags
        "00", // the topic's
        "00", // the body's
    );
    assert_eq!(tail[..], unhex(want));
    assert_eq!(frame.wire_len(), head.len() + 300 + tail.len());
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_in_version_0() {
    let frame = semel_kafka_wire::encode_unsupported_api_versions(3).unwrap();
    let bytes = frame.assemble(|_| Bytes::new()).unwrap();
    // Correlation id 3, error 35, one API: key 18, versions 0 to 5.
    assert_eq!(bytes, unhex("0000001000000003002300000001001200000005"));
    let (_, response) = semel_kafka_wire::decode_response(bytes.slice(4..), ApiKey::ApiVersions, 0).unwrap();
    let Response::ApiVersions(response) = response else { panic!("{response:?}") };
    assert_eq!(response.error_code, ErrorCode::UnsupportedVersion);
}
