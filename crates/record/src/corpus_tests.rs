//! Batches made by hand, damaged batches, and what comes of them.

use bytes::Bytes;
use expect_test::{Expect, expect};
use proptest::prelude::*;
use semel_model::{CoordinatorEpoch, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{
    Attributes, Batch, BatchBuilder, BatchError, BatchErrorKind, BatchHeader, BatchHeaders, Batches, Codec,
    Compression, ControlRecord, DecodeLimits, EndTransactionMarker, Limits, Outcome, Record, RecordHeader,
    Retained, TimestampType, control::end_txn_marker, validate_produced,
};

const LIMITS: DecodeLimits = DecodeLimits { decompressed_bytes_max: 1 << 20 };

/// One record, key `k`, value `v`, at time 1000: every byte written by hand (and the CRC by other code).
const GOLDEN: &str = "0000000000000000 0000003a ffffffff 02 716a6189 0000 00000000 \
    00000000000003e8 00000000000003e8 ffffffffffffffff ffff ffffffff 00000001 \
    10 00 00 00 02 6b 02 76 00";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Corrects length and CRC, so that only the damage under test is left.
fn seal(mut bytes: Vec<u8>) -> Bytes {
    let length = (bytes.len() - 12) as i32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

fn golden() -> Bytes {
    bytes(GOLDEN).into()
}

/// The golden batch with these bytes from `at` on.
fn patched(at: usize, patch: &[u8]) -> Bytes {
    let mut raw = bytes(GOLDEN);
    raw[at..at + patch.len()].copy_from_slice(patch);
    seal(raw)
}

/// A header for `count` records and then `records`.
fn with_records(count: i32, records: &[u8]) -> Bytes {
    let mut raw = bytes(GOLDEN);
    raw.truncate(BatchHeader::SIZE);
    raw[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    raw[57..61].copy_from_slice(&count.to_be_bytes());
    raw.extend_from_slice(records);
    seal(raw)
}

fn header(key: &'static str, value: Option<&'static str>) -> RecordHeader {
    RecordHeader {
        key: Bytes::from_static(key.as_bytes()),
        value: value.map(|v| Bytes::from_static(v.as_bytes())),
    }
}

fn sample(compression: Compression) -> Batch {
    let mut builder = BatchBuilder::new().compression(compression).producer(
        ProducerId(7),
        ProducerEpoch(2),
        Sequence(i32::MAX),
    );
    builder.push(Timestamp(1000), Some(b"k"), None, &[]);
    builder.push(Timestamp(1005), None, Some(b"v"), &[header("h", None), header("h", Some(""))]);
    builder.push(Timestamp(998), Some(b""), Some(b""), &[]);
    builder.build().unwrap()
}

fn check(records: Bytes, expected: Expect) {
    check_within(records, &Limits::default(), expected);
}

fn check_within(records: Bytes, limits: &Limits, expected: Expect) {
    let text = match validate_produced(records, limits) {
        Ok(batch) => {
            format!("{} records, max timestamp {}", batch.header.record_count, batch.header.max_timestamp)
        }
        Err(error) => format!("{}: {error}", error.kafka_name()),
    };
    expected.assert_eq(&text);
}

#[test]
fn the_golden_batch_is_read_and_written() {
    let batch = validate_produced(golden(), &Limits::default()).unwrap();
    assert_eq!(batch.header.size_in_bytes(), 70);
    assert_eq!(batch.bytes.len(), 70);
    let records: Vec<_> = batch.records(&LIMITS).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        records,
        [Record {
            offset_delta: 0,
            timestamp: Timestamp(1000),
            key: Some(Bytes::from_static(b"k")),
            value: Some(Bytes::from_static(b"v")),
            headers: vec![],
        }]
    );
    let mut builder = BatchBuilder::new();
    builder.push(Timestamp(1000), Some(b"k"), Some(b"v"), &[]);
    assert_eq!(builder.build().unwrap(), batch);
}

#[test]
fn null_and_empty_and_repeated_headers_are_kept_apart() {
    for codec in Codec::ALL {
        let batch = sample(Compression::of(codec));
        assert_eq!(batch.header.last_sequence(), Sequence(1));
        assert_eq!(
            (batch.header.base_timestamp, batch.header.max_timestamp),
            (Timestamp(1000), Timestamp(1005))
        );
        let batch = validate_produced(batch.bytes, &Limits::default()).unwrap();
        let records: Vec<_> = batch.records(&LIMITS).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!((records[0].key.as_deref(), records[0].value.as_deref()), (Some(&b"k"[..]), None));
        assert_eq!((records[1].key.as_deref(), records[1].value.as_deref()), (None, Some(&b"v"[..])));
        assert_eq!(
            (records[2].key.as_deref(), records[2].value.as_deref()),
            (Some(&b""[..]), Some(&b""[..]))
        );
        assert_eq!(records[1].headers, [header("h", None), header("h", Some(""))]);
        assert_eq!(records.iter().map(|record| record.timestamp.0).collect::<Vec<_>>(), [1000, 1005, 998]);
    }
}

#[test]
fn headers_that_a_producer_may_not_write_are_refused() {
    check(golden(), expect!["1 records, max timestamp 1000"]);
    check(Bytes::new(), expect!["INVALID_RECORD: expected exactly one batch, found 0 bytes beside it"]);
    check(
        [golden(), golden()].concat().into(),
        expect!["INVALID_RECORD: expected exactly one batch, found 70 bytes beside it"],
    );
    check(patched(16, &[1]), expect!["INVALID_RECORD: record batch magic 1 is not supported, only 2 is"]);
    check(patched(16, &[0xff]), expect!["INVALID_RECORD: record batch magic -1 is not supported, only 2 is"]);
    check(patched(22, &[5]), expect!["UNSUPPORTED_COMPRESSION_TYPE: compression codec 5 is unknown"]);
    check(
        patched(22, &[1 << 3]),
        expect!["INVALID_TIMESTAMP: a producer may not set the timestamp type to log append time"],
    );
    check(patched(22, &[1 << 4]), expect!["INVALID_RECORD: transactional batch without a producer id"]);
    check(patched(22, &[1 << 5]), expect!["INVALID_RECORD: a client may not write a control batch"]);
    check(
        patched(22, &[1 << 6]),
        expect!["INVALID_RECORD: attributes 0x0040 have bits that a producer may not set"],
    );
    check(
        patched(21, &[1]),
        expect!["INVALID_RECORD: attributes 0x0100 have bits that a producer may not set"],
    );
    check(
        patched(23, &1_i32.to_be_bytes()),
        expect!["INVALID_RECORD: batch has 1 records and last offset delta 1"],
    );
    check(
        patched(23, &(-1_i32).to_be_bytes()),
        expect!["INVALID_RECORD: batch has 1 records and last offset delta -1"],
    );
    check(
        patched(23, &i32::MAX.to_be_bytes()),
        expect!["INVALID_RECORD: batch has 1 records and last offset delta 2147483647"],
    );
    check(
        patched(57, &0_i32.to_be_bytes()),
        expect!["INVALID_RECORD: batch has 0 records and last offset delta 0"],
    );
    check(
        patched(57, &(-1_i32).to_be_bytes()),
        expect!["INVALID_RECORD: batch has -1 records and last offset delta 0"],
    );
    check(
        patched(57, &i32::MAX.to_be_bytes()),
        expect!["INVALID_RECORD: batch has 2147483647 records and last offset delta 0"],
    );
    check(
        patched(43, &5_i64.to_be_bytes()),
        expect!["INVALID_RECORD: producer id 5, epoch -1 and sequence -1 do not belong together"],
    );
    check(
        patched(43, &(-2_i64).to_be_bytes()),
        expect!["INVALID_RECORD: producer id -2, epoch -1 and sequence -1 do not belong together"],
    );
    check(
        patched(51, &[0, 0]),
        expect!["INVALID_RECORD: producer id -1, epoch 0 and sequence -1 do not belong together"],
    );
    check(
        patched(35, &999_i64.to_be_bytes()),
        expect!["INVALID_TIMESTAMP: max timestamp 999 is before base timestamp 1000"],
    );
    // A header with a count that its bytes can't hold is refused before anything is walked.
    check(
        with_records(1000, &[0; 20]),
        expect!["INVALID_RECORD: batch has 1000 records and last offset delta 999"],
    );
    // A max timestamp that no record has is corrected.
    check(patched(35, &9999_i64.to_be_bytes()), expect!["1 records, max timestamp 1000"]);
    check(patched(35, &(-1_i64).to_be_bytes()), expect!["1 records, max timestamp 1000"]);
}

#[test]
fn lengths_and_sums_that_do_not_fit_are_refused() {
    let raw = |at: usize, patch: &[u8]| {
        let mut raw = golden().to_vec();
        raw[at..at + patch.len()].copy_from_slice(patch);
        Bytes::from(raw)
    };
    check(raw(8, &48_i32.to_be_bytes()), expect!["CORRUPT_MESSAGE: batch length 48 is less than 49"]);
    check(raw(8, &(-1_i32).to_be_bytes()), expect!["CORRUPT_MESSAGE: batch length -1 is less than 49"]);
    check(
        raw(8, &i32::MAX.to_be_bytes()),
        expect!["MESSAGE_TOO_LARGE: batch of 2147483659 bytes is larger than the allowed 1048588"],
    );
    check(raw(8, &59_i32.to_be_bytes()), expect!["CORRUPT_MESSAGE: batch needs 71 bytes, only 70 are there"]);
    check(
        raw(8, &57_i32.to_be_bytes()),
        expect!["INVALID_RECORD: expected exactly one batch, found 1 bytes beside it"],
    );
    check(raw(69, &[1]), expect!["CORRUPT_MESSAGE: batch CRC is 0x716a6189 but its bytes give 0x8301e28a"]);
    // Base offset and leader epoch may be anything, for the leader stamps its own.
    check(raw(0, &[0xff; 8]), expect!["1 records, max timestamp 1000"]);
    check(raw(12, &[0x7f; 4]), expect!["1 records, max timestamp 1000"]);

    let limits = |max| Limits { message_bytes_max: max, ..Limits::default() };
    check_within(golden(), &limits(70), expect!["1 records, max timestamp 1000"]);
    check_within(
        golden(),
        &limits(69),
        expect!["MESSAGE_TOO_LARGE: batch of 70 bytes is larger than the allowed 69"],
    );
}

#[test]
fn records_that_break_the_format_are_refused() {
    let check = |count, hex: &str, expected| check(with_records(count, &bytes(hex)), expected);
    check(1, "10 00 00 00 02 6b 02 76 00", expect!["1 records, max timestamp 1000"]);
    // Cut off, or followed by more.
    check(
        1,
        "10 00 00 00 02 6b 02 76",
        expect!["INVALID_RECORD: record 0 is malformed: it is longer than its batch"],
    );
    check(
        1,
        "10 00 00 00 02 6b 02 76 00 00",
        expect!["INVALID_RECORD: record 1 is malformed: bytes follow the last record"],
    );
    check(
        1,
        "12 00 00 00 02 6b 02 76 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: bytes follow its last header"],
    );
    check(
        1,
        "00 00 00 00 00 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: its attributes are cut off"],
    );
    check(
        1,
        "02 00 00 00 00 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: its timestamp delta is cut off"],
    );
    check(
        1,
        "04 00 80 00 00 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: its timestamp delta is cut off"],
    );
    check(
        1,
        "04 00 00 00 00 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: its offset delta is cut off"],
    );
    // Negative and endless numbers.
    check(
        1,
        "01 00 00 00 00 00 00",
        expect!["INVALID_RECORD: record 0 is malformed: its length is negative"],
    );
    check(1, "80 80 80 80 80 80 80", expect!["INVALID_RECORD: record 0 is malformed: its length is cut off"]);
    check(1, "0c 00 00 00 03 00 00", expect!["INVALID_RECORD: record 0 is malformed: its key is cut off"]);
    check(1, "0c 00 00 00 01 03 00", expect!["INVALID_RECORD: record 0 is malformed: its value is cut off"]);
    check(
        1,
        "0c 00 00 00 01 01 01",
        expect!["INVALID_RECORD: record 0 is malformed: its header count is negative"],
    );
    check(1, "0c 00 00 00 01 01 00", expect!["1 records, max timestamp 1000"]);
    // Claims that the bytes do not bear out.
    check(
        1,
        "14 00 00 00 fe ff ff ff 0f 01 00",
        expect!["INVALID_RECORD: record 0 is malformed: its key is cut off"],
    );
    check(
        1,
        "14 00 00 00 01 01 fe ff ff ff 0f",
        expect!["INVALID_RECORD: record 0 is malformed: a header's key is cut off"],
    );
    check(
        1,
        "10 00 00 00 01 01 02 01 00",
        expect!["INVALID_RECORD: record 0 is malformed: a header's key is null"],
    );
    check(
        1,
        "0e 00 00 00 01 01 02 00",
        expect!["INVALID_RECORD: record 0 is malformed: a header's value is cut off"],
    );
    // Offset deltas other than 0, 1, 2.
    check(
        1,
        "0c 00 00 02 01 01 00",
        expect!["INVALID_RECORD: record 0 is malformed: its offset delta is out of order"],
    );
    check(
        2,
        "0c 00 00 00 01 01 00 0c 00 00 00 01 01 00",
        expect!["INVALID_RECORD: record 1 is malformed: its offset delta is out of order"],
    );
    check(
        2,
        "0c 00 00 02 01 01 00 0c 00 00 04 01 01 00",
        expect!["INVALID_RECORD: record 1 is malformed: its offset delta is out of order"],
    );
    check(2, "0c 00 00 00 01 01 00 0c 00 00 02 01 01 00", expect!["2 records, max timestamp 1000"]);
    check(
        2,
        "18 00 00 00 0e 00 00 00 00 00 00 01 00",
        expect!["INVALID_RECORD: batch has 2 records and last offset delta 1"],
    );
}

#[test]
fn topics_have_limits_on_time_and_keys() {
    let times = Limits { timestamp_min: Timestamp(990), timestamp_max: Timestamp(1004), ..Limits::default() };
    for codec in [Codec::None, Codec::Zstd] {
        let batch = sample(Compression::of(codec));
        check_within(batch.bytes, &times, expect!["INVALID_TIMESTAMP: timestamp 1005 is outside 990..=1004"]);
    }
    let times = Limits { timestamp_min: Timestamp(999), timestamp_max: Timestamp(1005), ..Limits::default() };
    let batch = sample(Compression::NONE);
    check_within(batch.bytes, &times, expect!["INVALID_TIMESTAMP: timestamp 998 is outside 999..=1005"]);
    let times = Limits { timestamp_min: Timestamp(998), ..times };
    check_within(sample(Compression::NONE).bytes, &times, expect!["3 records, max timestamp 1005"]);
    // No timestamp is always in range.
    check_within(patched(27, &[0xff; 16]), &times, expect!["1 records, max timestamp -1"]);

    let keys = Limits { keys_required: true, ..Limits::default() };
    for codec in Codec::ALL {
        let batch = sample(Compression::of(codec));
        check_within(
            batch.bytes,
            &keys,
            expect!["INVALID_RECORD: record 1 has no key, which a compacted topic needs"],
        );
    }
    check_within(golden(), &keys, expect!["1 records, max timestamp 1000"]);
}

#[test]
fn a_bomb_costs_no_more_than_the_limit() {
    let mut builder = BatchBuilder::new().compression(Compression::of(Codec::Gzip));
    builder.push(Timestamp(0), Some(b"k"), Some(&vec![0; 8 << 20]), &[]);
    let bomb = builder.build().unwrap();
    assert!(bomb.bytes.len() < 100_000);
    let refused = bomb.records(&LIMITS).map(drop).unwrap_err();
    assert!(matches!(refused, BatchError::DecompressedTooLarge { .. }));
    assert_eq!(refused.kind(), BatchErrorKind::MessageTooLarge);
    // Nobody looks inside unless the topic has to.
    assert!(validate_produced(bomb.bytes.clone(), &Limits::default()).is_ok());
    let keys = Limits { keys_required: true, decode: LIMITS, ..Limits::default() };
    assert!(matches!(
        validate_produced(bomb.bytes.clone(), &keys),
        Err(BatchError::DecompressedTooLarge { .. })
    ));
    assert!(bomb.recompress(Compression::NONE, &LIMITS).is_err());
}

#[test]
fn every_truncation_and_every_flipped_bit_is_noticed() {
    for codec in Codec::ALL {
        let whole = sample(Compression::of(codec)).bytes;
        for length in 0..whole.len() {
            let error = validate_produced(whole.slice(..length), &Limits::default()).unwrap_err();
            let expected =
                if length == 0 { BatchErrorKind::InvalidRecord } else { BatchErrorKind::CorruptMessage };
            assert_eq!(error.kind(), expected, "{codec} cut at {length}: {error}");
        }
        for at in 0..whole.len() * 8 {
            let mut damaged = whole.to_vec();
            damaged[at / 8] ^= 1 << (at % 8);
            let result = validate_produced(damaged.clone().into(), &Limits::default());
            // Base offset and leader epoch are the leader's to write.
            let outside = (0..8).contains(&(at / 8)) || (12..16).contains(&(at / 8));
            assert_eq!(result.is_ok(), outside, "{codec}, bit {at}");
            // Without the CRC to protect them, damaged records are refused or read, and never panic.
            let resealed = seal(damaged);
            if let Ok(batch) = Batch::parse(resealed)
                && let Ok(records) = batch.records(&LIMITS)
            {
                assert!(records.count() <= whole.len() * 100);
            }
        }
    }
}

#[test]
fn stamping_and_append_time_keep_the_sum_right() {
    for codec in Codec::ALL {
        let batch = sample(Compression::of(codec));
        let head = batch.stamped_head(Offset(1 << 40), LeaderEpoch(9));
        let written = Batch::parse([&head[..], &batch.bytes[16..]].concat().into()).unwrap();
        written.verify_crc().unwrap();
        assert_eq!(
            (written.header.base_offset, written.header.leader_epoch),
            (Offset(1 << 40), LeaderEpoch(9))
        );
        assert_eq!(written, batch.clone().stamped(Offset(1 << 40), LeaderEpoch(9)));

        let kept = batch.clone();
        let appended = batch.with_append_time(Timestamp(77_777));
        appended.verify_crc().unwrap();
        assert_eq!(Batch::parse(appended.bytes.clone()).unwrap(), appended);
        assert_eq!(appended.header.attributes.timestamp_type(), TimestampType::LogAppendTime);
        assert!(
            appended.records(&LIMITS).unwrap().all(|record| record.unwrap().timestamp == Timestamp(77_777))
        );
        kept.verify_crc().unwrap();
        assert_eq!(kept.header.attributes.timestamp_type(), TimestampType::CreateTime);
    }
}

#[test]
fn recompression_keeps_all_but_the_codec() {
    for from in Codec::ALL {
        let batch = sample(Compression::of(from)).stamped(Offset(5), LeaderEpoch(1));
        for to in Codec::ALL {
            let again = batch.recompress(Compression::of(to), &LIMITS).unwrap();
            again.verify_crc().unwrap();
            assert_eq!(Batch::parse(again.bytes.clone()).unwrap(), again);
            let expected = BatchHeader {
                attributes: Attributes::new(to),
                crc: again.header.crc,
                length: again.header.length,
                ..batch.header
            };
            assert_eq!(again.header, expected);
            let records =
                |batch: &Batch| batch.records(&LIMITS).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(records(&again), records(&batch));
        }
    }
}

#[test]
fn a_walk_over_batches_ends_at_a_partial_one() {
    let one = golden();
    for extra in [0, 1, 11, 12, 17, 60, 61, 69] {
        let row: Bytes = [&one[..], &one[..], &one[..extra]].concat().into();
        let mut batches = Batches::new(row.clone());
        assert_eq!(batches.by_ref().map(Result::unwrap).count(), 2);
        assert_eq!(batches.remainder().len(), extra);
        let mut headers = BatchHeaders::new(&row);
        let positions: Vec<_> = headers.by_ref().map(|header| header.unwrap().0).collect();
        assert_eq!(positions, [0, 70]);
        assert_eq!(headers.position(), 140);
    }
    // Zeros, as a torn write leaves them, are no partial batch.
    let row: Bytes = [&one[..], &[0; 100]].concat().into();
    let mut batches = Batches::new(row.clone());
    assert!(batches.next().unwrap().is_ok());
    assert!(batches.next().unwrap().is_err());
    assert!(batches.next().is_none());
    assert_eq!(batches.remainder().len(), 100);
    assert_eq!(BatchHeaders::new(&row).filter(Result::is_err).count(), 1);
}

#[test]
fn control_records_are_written_and_read() {
    for outcome in [Outcome::Commit, Outcome::Abort] {
        let marker = EndTransactionMarker { outcome, coordinator_epoch: CoordinatorEpoch(3) };
        let batch = end_txn_marker(marker, ProducerId(9), ProducerEpoch(4), Timestamp(50));
        batch.verify_crc().unwrap();
        assert!(batch.header.attributes.is_control() && batch.header.attributes.is_transactional());
        assert_eq!(batch.header.base_sequence, Sequence::NONE);
        assert_eq!(ControlRecord::of(&batch, &LIMITS).unwrap(), Some(ControlRecord::EndTransaction(marker)));
        assert_eq!(ControlRecord::of(&batch.emptied(), &LIMITS).unwrap(), None);
        assert!(matches!(validate_produced(batch.bytes, &Limits::default()), Err(BatchError::ControlBatch)));
    }
    assert_eq!(ControlRecord::of(&sample(Compression::NONE), &LIMITS).unwrap(), None);

    let parse = |key: &[u8], value: &[u8]| match ControlRecord::parse(Some(key), Some(value)) {
        Ok(record) => format!("{record:?}"),
        Err(error) => error.to_string(),
    };
    // Longer keys and values are of later versions.
    expect![
        "EndTransaction(EndTransactionMarker { outcome: Commit, coordinator_epoch: CoordinatorEpoch(258) })"
    ]
    .assert_eq(&parse(&[0, 1, 0, 1, 9], &[0, 1, 0, 0, 1, 2, 9]));
    expect!["LeaderChange"].assert_eq(&parse(&[0, 0, 0, 2], &[]));
    expect!["SnapshotHeader"].assert_eq(&parse(&[0, 0, 0, 3], &[]));
    expect!["SnapshotFooter"].assert_eq(&parse(&[0, 0, 0, 4], &[]));
    expect!["KraftVersion"].assert_eq(&parse(&[0, 0, 0, 5], &[]));
    expect!["KraftVoters"].assert_eq(&parse(&[0, 0, 0, 6], &[]));
    expect!["Unknown { kind: 7 }"].assert_eq(&parse(&[0, 0, 0, 7], &[]));
    expect!["Unknown { kind: -1 }"].assert_eq(&parse(&[0, 0, 0xff, 0xff], &[]));
    expect!["control record is malformed: its key is shorter than 4 bytes"]
        .assert_eq(&parse(&[0, 0, 0], &[]));
    expect!["control record is malformed: its key has a negative version"]
        .assert_eq(&parse(&[0x80, 0, 0, 0], &[]));
    expect!["control record is malformed: its value is shorter than 6 bytes"]
        .assert_eq(&parse(&[0, 0, 0, 0], &[0; 5]));
    expect!["control record is malformed: its value has a negative version"]
        .assert_eq(&parse(&[0, 0, 0, 0], &[0xff; 6]));
    assert!(ControlRecord::parse(None, None).is_err());
}

#[test]
fn compaction_keeps_the_batchs_identity() {
    for codec in Codec::ALL {
        let batch = sample(Compression::of(codec)).stamped(Offset(100), LeaderEpoch(3));
        assert_eq!(batch.retain_within(&LIMITS, None, |_| true).unwrap(), Retained::All);
        assert_eq!(batch.retain_within(&LIMITS, None, |_| false).unwrap(), Retained::None);

        let Retained::Some(kept) = batch.retain_within(&LIMITS, None, |view| view.offset_delta == 2).unwrap()
        else {
            panic!("one record is left")
        };
        kept.verify_crc().unwrap();
        assert_eq!(Batch::parse(kept.bytes.clone()).unwrap(), kept);
        let expected = BatchHeader {
            record_count: 1,
            max_timestamp: Timestamp(998),
            crc: kept.header.crc,
            length: kept.header.length,
            ..batch.header
        };
        assert_eq!(kept.header, expected);
        let records = |batch: &Batch| batch.records(&LIMITS).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(records(&kept), records(&batch)[2..]);

        // A horizon is set once, and times stay what they were.
        let Retained::Some(dated) =
            batch.retain_within(&LIMITS, Some(Timestamp(5_000_000)), |_| true).unwrap()
        else {
            panic!("the horizon is new")
        };
        dated.verify_crc().unwrap();
        assert_eq!(dated.header.delete_horizon(), Some(Timestamp(5_000_000)));
        assert_eq!(dated.header.max_timestamp, Timestamp(1005));
        assert_eq!(records(&dated), records(&batch));
        assert_eq!(
            dated.retain_within(&LIMITS, Some(Timestamp(6_000_000)), |_| true).unwrap(),
            Retained::All
        );
        let Retained::Some(less) = dated.retain_within(&LIMITS, None, |view| view.offset_delta > 0).unwrap()
        else {
            panic!("two records are left")
        };
        assert_eq!(less.header.delete_horizon(), Some(Timestamp(5_000_000)));
        assert_eq!(records(&less), records(&batch)[1..]);

        let empty = batch.emptied();
        empty.verify_crc().unwrap();
        assert_eq!(empty.bytes.len(), BatchHeader::SIZE);
        assert_eq!(Batch::parse(empty.bytes.clone()).unwrap().header, empty.header);
        assert_eq!(empty.header.last_offset(), Offset(102));
        assert_eq!(empty.header.last_sequence(), Sequence(1));
        assert_eq!(empty.records(&LIMITS).unwrap().count(), 0);
    }
}

#[test]
fn a_batch_needs_records() {
    assert!(matches!(BatchBuilder::new().build(), Err(BatchError::NoRecords)));
}

fn some_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_records_come_back_and_any_subset_of_them(
        records in proptest::collection::vec(
            (0_i64..1 << 45, some_bytes(), some_bytes(), proptest::collection::vec((some_bytes(), some_bytes()), 0..4), any::<bool>()),
            1..30,
        ),
        codec in 0_u8..5,
        horizon in proptest::option::of(0_i64..1 << 45),
    ) {
        let mut builder = BatchBuilder::new().compression(Compression::of(Codec::from_id(codec).unwrap()));
        let mut expected = Vec::new();
        for (timestamp, key, value, headers, _) in &records {
            let headers: Vec<_> = headers
                .iter()
                .map(|(key, value)| RecordHeader {
                    key: key.clone().unwrap_or_default().into(),
                    value: value.clone().map(Bytes::from),
                })
                .collect();
            builder.push(Timestamp(*timestamp), key.as_deref(), value.as_deref(), &headers);
            expected.push(Record {
                offset_delta: expected.len() as i32,
                timestamp: Timestamp(*timestamp),
                key: key.clone().map(Bytes::from),
                value: value.clone().map(Bytes::from),
                headers,
            });
        }
        let batch = validate_produced(builder.build().unwrap().bytes, &Limits::default()).unwrap();
        let read: Vec<_> = batch.records(&LIMITS).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&read, &expected);

        let wanted = |delta: i32| records[delta as usize].4;
        let kept = batch.retain_within(&LIMITS, horizon.map(Timestamp), |view| wanted(view.offset_delta)).unwrap();
        expected.retain(|record| wanted(record.offset_delta));
        let kept = match kept {
            Retained::All => batch,
            Retained::Some(kept) => kept,
            Retained::None => batch.emptied(),
        };
        kept.verify_crc().unwrap();
        let read: Vec<_> = kept.records(&LIMITS).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&read, &expected);
    }

    #[test]
    fn no_bytes_make_it_panic(noise in proptest::collection::vec(any::<u8>(), 0..200), codec in 0_u8..8, count in 1_i32..20) {
        let mut raw = with_records(count, &noise).to_vec();
        raw[22] = codec;
        let sealed = seal(raw);
        let _ = validate_produced(sealed.clone(), &Limits { keys_required: true, ..Limits::default() });
        if let Ok(batch) = Batch::parse(sealed) {
            if let Ok(records) = batch.records(&LIMITS) {
                let _ = records.count();
            }
            let _ = batch.retain_within(&LIMITS, Some(Timestamp(5)), |view| view.key.is_some());
            let _ = batch.recompress(Compression::of(Codec::Lz4), &LIMITS);
        }
        let _ = BatchHeaders::new(&noise).count();
        let _ = ControlRecord::parse(Some(&noise), Some(&noise));
    }
}
