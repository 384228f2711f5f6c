//! The Kafka protocol: what clients send, and what a client of ours gets back.

use bytes::Bytes;
use semel_kafka_wire::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, EncodeError, Frame, Reader, Request, Response,
    SUPPORTED, decode_any, decode_frame, decode_response, encode_request, encode_response,
};

use crate::input::Input;

/// A request's frame, without its length. What can be read can be written, and then reads and writes the same.
pub fn kafka_frame(data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    let Ok((header, body)) = decode_any(frame.clone()) else {
        // The gateway looks at the header alone first.
        if let Ok((_, reader)) = decode_frame(frame) {
            assert!(reader.remaining() <= data.len());
        }
        return;
    };
    let encode = |body: &Request| {
        encode_request(header.correlation_id, header.client_id.clone(), header.version, body)
    };
    let first = whole(encode(&body).expect("a request that was read can be written"));
    let (again, second) = decode_any(first.slice(4..)).expect("a request that was written can be read");
    assert_eq!(again, header);
    // Bytes, not values: a float that is no number differs from itself.
    assert_eq!(first, whole(encode(&second).expect("it was written before")));
}

/// A response's frame: which API (u8), which of its versions (u8), then the frame without its length.
pub fn kafka_response(data: &[u8]) {
    let mut input = Input::new(data);
    let api = SUPPORTED[usize::from(input.u8()) % SUPPORTED.len()];
    let version = api.min + i16::from(input.u8()) % (api.max - api.min + 1);
    let frame = Bytes::copy_from_slice(input.rest());
    let Ok((correlation_id, body)) = decode_response(frame, api.key, version) else { return };
    let encode = |body: &Response| encode_response(correlation_id, version, body);
    let first = whole(encode(&body).expect("a response that was read can be written"));
    let (again, second) =
        decode_response(first.slice(4..), api.key, version).expect("a response that was written can be read");
    assert_eq!(again, correlation_id);
    assert_eq!(first, whole(encode(&second).expect("it was written before")));
}

/// What consumers put into JoinGroup and SyncGroup, both messages.
pub fn consumer_protocol(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok((version, subscription)) = ConsumerProtocolSubscription::from_bytes(bytes.clone()) {
        check_version(subscription.to_bytes(version), version, |bytes| {
            assert_eq!(
                ConsumerProtocolSubscription::from_bytes(bytes).expect("it was written"),
                (version, subscription.clone())
            );
        });
    }
    if let Ok((version, assignment)) = ConsumerProtocolAssignment::from_bytes(bytes) {
        check_version(assignment.to_bytes(version), version, |bytes| {
            assert_eq!(
                ConsumerProtocolAssignment::from_bytes(bytes).expect("it was written"),
                (version, assignment.clone())
            );
        });
    }
}

/// A version newer than ours is read as ours, but not written.
fn check_version(written: Result<Bytes, EncodeError>, version: i16, check: impl FnOnce(Bytes)) {
    match written {
        Ok(bytes) => check(bytes),
        Err(EncodeError::UnsupportedVersion { .. }) if version > 3 => {}
        Err(error) => panic!("version {version} that was read can't be written: {error}"),
    }
}

fn whole(frame: Frame) -> Bytes {
    let length = frame.wire_len();
    let bytes = frame.assemble(|external| panic!("nothing read is external: {external:?}"));
    let bytes = bytes.expect("there are no external payloads");
    assert_eq!(bytes.len(), length);
    bytes
}

/// For the seeds: a frame of a golden body.
pub(crate) fn request_frame(api: usize, version: i16, body: Bytes) -> Option<Bytes> {
    let key = SUPPORTED[api].key;
    let request = Request::decode(key, version, &mut Reader::new(body)).ok()?;
    let frame = encode_request(7, Some("seed".into()), version, &request).ok()?;
    Some(whole(frame).slice(4..))
}

/// For the seeds: an input of a golden body.
pub(crate) fn response_input(api: usize, version: i16, body: Bytes) -> Option<Vec<u8>> {
    let support = SUPPORTED[api];
    let response = Response::decode(support.key, version, &mut Reader::new(body)).ok()?;
    let frame = whole(encode_response(7, version, &response).ok()?);
    let mut input = vec![u8::try_from(api).ok()?, u8::try_from(version - support.min).ok()?];
    input.extend_from_slice(&frame[4..]);
    Some(input)
}

/// For the seeds: the bytes of an embedded message.
pub(crate) fn protocol_seeds() -> Vec<Bytes> {
    let subscription = ConsumerProtocolSubscription {
        topics: vec!["orders".into(), "t".into()],
        user_data: Some(Bytes::from_static(b"\0\x01")),
        ..Default::default()
    };
    let assignment = ConsumerProtocolAssignment { user_data: Some(Bytes::new()), ..Default::default() };
    let mut seeds = Vec::new();
    for version in 0..=3 {
        seeds.extend(subscription.to_bytes(version));
        seeds.extend(assignment.to_bytes(version));
    }
    seeds
}
