//! Bytes that no honest client sends: nothing panics, and nothing makes a decode allocate more than a small multiple
//! of the frame.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use semel_kafka_wire::testing::TestRng;
use semel_kafka_wire::{
    ApiKey, ConsumerProtocolAssignment, ConsumerProtocolSubscription, DecodeError, Reader, Request, Response,
    SUPPORTED, decode_any, decode_response, encode_request, encode_response,
};

/// Counts what the thread that asks for it allocates, freed or not.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// A global allocator is an unsafe trait by nature; this one adds a counter to the system's and changes nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Gone while the thread ends, when nobody counts any more.
        let _ = ALLOCATED.try_with(|sum| sum.set(sum.get() + layout.size()));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `work` and checks that it allocated no more than a frame of `frame` bytes may: the reader's budget (16 bytes
/// for each, and 64 KiB) and a little for the shared counters of slices.
fn bounded<T>(frame: usize, work: impl FnOnce() -> T) -> T {
    let before = ALLOCATED.with(Cell::get);
    let result = work();
    let allocated = ALLOCATED.with(Cell::get) - before;
    let most = 16 * frame + 64 * 1024 + 1024;
    assert!(allocated <= most, "{allocated} bytes for a frame of {frame}, at most {most}");
    result
}

/// A header for each API and version, without tagged fields.
fn header(key: ApiKey, version: i16) -> BytesMut {
    let mut bytes = BytesMut::new();
    bytes.put_i16(key.code());
    bytes.put_i16(version);
    bytes.put_i32(1);
    bytes.put_i16(-1);
    if semel_kafka_wire::flexible(key, version) {
        bytes.put_u8(0);
    }
    bytes
}

fn both(key: ApiKey, version: i16, body: &[u8]) {
    let mut request = header(key, version);
    request.put_slice(body);
    let request = request.freeze();
    let _ = bounded(request.len(), || decode_any(request.clone()));
    let mut response = BytesMut::new();
    response.put_i32(1);
    if key != ApiKey::ApiVersions && semel_kafka_wire::flexible(key, version) {
        response.put_u8(0);
    }
    response.put_slice(body);
    let response = response.freeze();
    let _ = bounded(response.len(), || decode_response(response.clone(), key, version));
}

fn every_version() -> impl Iterator<Item = (ApiKey, i16)> {
    SUPPORTED.iter().flat_map(|api| (api.min..=api.max).map(|version| (api.key, version)))
}

#[test]
fn a_frame_cut_at_any_byte_is_an_error() {
    for (key, version) in every_version() {
        let mut g = TestRng::new(version as u64);
        let request = Request::arbitrary(key, &mut g, version).unwrap();
        let frame = encode_request(1, Some("client".into()), version, &request).unwrap();
        let frame = frame.assemble(|_| Bytes::new()).unwrap().slice(4..);
        assert_eq!(bounded(frame.len(), || decode_any(frame.clone())).unwrap().1, request);
        let response = Response::arbitrary(key, &mut g, version).unwrap();
        let answer = encode_response(1, version, &response).unwrap();
        let answer = answer.assemble(|_| Bytes::new()).unwrap().slice(4..);
        assert_eq!(
            bounded(answer.len(), || decode_response(answer.clone(), key, version)).unwrap().1,
            response
        );
        // Every byte of short frames, and some of the long ones.
        for cut in (0..frame.len()).step_by(1 + frame.len() / 600) {
            let cut = frame.slice(..cut);
            assert!(bounded(cut.len(), || decode_any(cut.clone())).is_err(), "{key} {version}");
        }
        for cut in (0..answer.len()).step_by(1 + answer.len() / 600) {
            let cut = answer.slice(..cut);
            assert!(
                bounded(cut.len(), || decode_response(cut.clone(), key, version)).is_err(),
                "{key} {version}"
            );
        }
    }
}

/// librdkafka 2.12 ends some Metadata requests with three bytes that no version has, and Kafka takes them.
#[test]
fn bytes_after_a_request_are_passed_over() {
    for (key, version) in every_version() {
        let mut g = TestRng::new(7);
        let request = Request::arbitrary(key, &mut g, version).unwrap();
        let frame = encode_request(1, None, version, &request).unwrap().assemble(|_| Bytes::new()).unwrap();
        let mut long = BytesMut::from(&frame[4..]);
        long.put_slice(&[0, 0, 0]);
        let (_, read) = decode_any(long.freeze()).unwrap();
        assert_eq!(read, decode_any(frame.slice(4..)).unwrap().1, "{key} {version}");
    }
}

#[test]
fn flipped_bytes_and_lying_lengths_stay_within_the_bound() {
    for (key, version) in every_version() {
        let mut g = TestRng::new(3 + version as u64);
        let frames = [
            encode_request(1, None, version, &Request::arbitrary(key, &mut g, version).unwrap()).unwrap(),
            encode_response(1, version, &Response::arbitrary(key, &mut g, version).unwrap()).unwrap(),
        ];
        for (index, frame) in frames.iter().enumerate() {
            let whole = frame.assemble(|_| Bytes::new()).unwrap().slice(4..);
            for _ in 0..200 {
                let mut bytes = BytesMut::from(&whole[..]);
                if bytes.is_empty() {
                    continue;
                }
                for _ in 0..=g.below(3) {
                    let at = g.below(bytes.len() as u64) as usize;
                    match g.below(3) {
                        0 => bytes[at] = g.next_u64() as u8,
                        1 => bytes[at..].iter_mut().take(5).for_each(|byte| *byte = 0xff),
                        _ => bytes[at..]
                            .iter_mut()
                            .take(4)
                            .zip([0x7f, 0xff, 0xff, 0xff])
                            .for_each(|(b, v)| *b = v),
                    }
                }
                let bytes = bytes.freeze();
                if index == 0 {
                    let _ = bounded(bytes.len(), || decode_any(bytes.clone()));
                } else {
                    let _ = bounded(bytes.len(), || decode_response(bytes.clone(), key, version));
                }
            }
        }
    }
}

#[test]
fn a_quarter_megabyte_of_one_byte_stays_within_the_bound() {
    // Zeros are the cheapest elements there are; the others are the longest lengths.
    for (key, version) in every_version() {
        for fill in [0x00, 0x01, 0x02, 0x7f, 0x80, 0xff] {
            let mut body = vec![fill; 1 << 18];
            both(key, version, &body);
            // An array that says it fills the frame, behind prefixes of a few sizes.
            for prefix in [0, 2, 4, 6, 8, 10] {
                body[prefix..prefix + 4].copy_from_slice(&(1u32 << 17).to_be_bytes());
                both(key, version, &body[..]);
            }
        }
    }
}

#[test]
fn a_four_byte_body_that_asks_for_two_billion_topics() {
    let mut frame = header(ApiKey::Metadata, 1);
    frame.put_i32(i32::MAX);
    let frame = frame.freeze();
    let error = bounded(0, || decode_any(frame.clone())).unwrap_err();
    assert_eq!(error, DecodeError::BadLength { at: 14, length: i64::from(i32::MAX), remaining: 0 });
}

#[test]
fn a_header_that_is_none() {
    for bytes in [&[][..], &[0], &[0, 3, 0], &[0, 3, 0, 1, 0, 0, 0, 1], &[0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff]]
    {
        assert!(
            matches!(decode_any(Bytes::from_static(bytes)), Err(DecodeError::Truncated { .. })),
            "{bytes:?}"
        );
    }
    let unknown = Bytes::from_static(&[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]);
    assert_eq!(decode_any(unknown), Err(DecodeError::UnsupportedApi { key: 0x7fff }));
    let no_schema = Bytes::from_static(&[0, 4, 0, 0, 0, 0, 0, 1, 0xff, 0xff]);
    assert_eq!(decode_any(no_schema), Err(DecodeError::UnsupportedApi { key: 4 }));
    let old = header(ApiKey::Produce, 2).freeze();
    assert_eq!(
        decode_any(old),
        Err(DecodeError::UnsupportedVersion { message: "ProduceRequest", version: 2 })
    );
    let negative = header(ApiKey::Fetch, -1).freeze();
    assert_eq!(
        decode_any(negative),
        Err(DecodeError::UnsupportedVersion { message: "FetchRequest", version: -1 })
    );
}

#[test]
fn invalid_text_and_misplaced_nulls_are_errors() {
    let mut frame = header(ApiKey::Metadata, 1);
    frame.put_slice(&[0, 0, 0, 1, 0, 1, 0xff]);
    assert_eq!(decode_any(frame.freeze()), Err(DecodeError::NotUtf8 { at: 16 }));
    let mut frame = header(ApiKey::Metadata, 0);
    frame.put_i32(-1);
    assert_eq!(decode_any(frame.freeze()), Err(DecodeError::UnexpectedNull { at: 14 }));
    let mut frame = header(ApiKey::Metadata, 9);
    frame.put_slice(&[2, 0, 0, 0]);
    assert_eq!(decode_any(frame.freeze()), Err(DecodeError::UnexpectedNull { at: 13 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_frames_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let bytes = Bytes::from(bytes);
        let _ = bounded(bytes.len(), || decode_any(bytes.clone()));
        let _ = bounded(bytes.len(), || ConsumerProtocolSubscription::from_bytes(bytes.clone()));
        let _ = bounded(bytes.len(), || ConsumerProtocolAssignment::from_bytes(bytes.clone()));
    }

    #[test]
    fn random_bodies_do_no_harm(pick in any::<u32>(), body in proptest::collection::vec(any::<u8>(), 0..400)) {
        let all: Vec<_> = every_version().collect();
        let (key, version) = all[pick as usize % all.len()];
        both(key, version, &body);
        // The same with small numbers, which get further.
        let small: Vec<u8> = body.iter().map(|byte| byte % 4).collect();
        both(key, version, &small);
    }

    #[test]
    fn what_decodes_encodes_to_something_equal(pick in any::<u32>(), body in proptest::collection::vec(0u8..4, 0..200)) {
        let all: Vec<_> = every_version().collect();
        let (key, version) = all[pick as usize % all.len()];
        let mut r = Reader::new(Bytes::from(body));
        if let Ok(request) = Request::decode(key, version, &mut r) {
            let frame = encode_request(1, None, version, &request).unwrap().assemble(|_| Bytes::new()).unwrap();
            prop_assert_eq!(decode_any(frame.slice(4..)).unwrap().1, request);
        }
    }
}
