//! Comparison with another implementation of the format, in both directions, and bytes that it once wrote.

use bytes::{Bytes, BytesMut};
use kafka_protocol::{indexmap::IndexMap, records as theirs};
use semel_model::{ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{Batch, BatchBuilder, Codec, Compression, DecodeLimits, Limits, RecordHeader, validate_produced};

const LIMITS: DecodeLimits = DecodeLimits { decompressed_bytes_max: 1 << 24 };

fn their_codec(codec: Codec) -> theirs::Compression {
    match codec {
        Codec::None => theirs::Compression::None,
        Codec::Gzip => theirs::Compression::Gzip,
        Codec::Snappy => theirs::Compression::Snappy,
        Codec::Lz4 => theirs::Compression::Lz4,
        Codec::Zstd => theirs::Compression::Zstd,
    }
}

fn value(index: i64) -> Vec<u8> {
    format!("value {index} ").repeat(1 + index as usize % 50).into_bytes()
}

fn their_records(count: i64) -> Vec<theirs::Record> {
    (0..count)
        .map(|index| theirs::Record {
            transactional: true,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: 4,
            producer_id: 77,
            producer_epoch: 3,
            timestamp_type: theirs::TimestampType::Creation,
            offset: index,
            sequence: 10 + index as i32,
            timestamp: 1_700_000_000_000 + index,
            key: (index % 3 != 0).then(|| Bytes::from(format!("key {index}"))),
            value: (index % 5 != 0).then(|| value(index).into()),
            headers: IndexMap::from([("h".into(), (index % 2 == 0).then(|| Bytes::from_static(b"x")))]),
        })
        .collect()
}

fn our_batch(count: i64, codec: Codec) -> Batch {
    let mut builder = BatchBuilder::new()
        .compression(Compression::of(codec))
        .producer(ProducerId(77), ProducerEpoch(3), Sequence(10))
        .transactional()
        .stamp(semel_model::Offset(0), semel_model::LeaderEpoch(4));
    for record in their_records(count) {
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(key, value)| RecordHeader {
                key: Bytes::copy_from_slice(key.as_bytes()),
                value: value.clone(),
            })
            .collect();
        builder.push(Timestamp(record.timestamp), record.key.as_deref(), record.value.as_deref(), &headers);
    }
    builder.build().unwrap()
}

#[test]
fn they_read_what_we_write() {
    for codec in Codec::ALL {
        for count in [1, 7, 3000] {
            let batch = our_batch(count, codec);
            let set = theirs::RecordBatchDecoder::decode(&mut batch.bytes.clone()).unwrap();
            assert_eq!(set.compression, their_codec(codec));
            assert_eq!(set.records, their_records(count), "{codec}");
        }
    }
}

#[test]
fn we_read_what_they_write() {
    for codec in Codec::ALL {
        for count in [1, 7, 3000] {
            let mut bytes = BytesMut::new();
            let options = theirs::RecordEncodeOptions { version: 2, compression: their_codec(codec) };
            theirs::RecordBatchEncoder::encode(&mut bytes, &their_records(count), &options).unwrap();
            let batch = validate_produced(bytes.freeze(), &Limits::default()).unwrap();
            let ours = our_batch(count, codec);
            if codec == Codec::None {
                assert_eq!(batch, ours);
            }
            let records =
                |batch: &Batch| batch.records(&LIMITS).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(records(&batch), records(&ours), "{codec}");
        }
    }
}

/// Two records as they stand in each codec. Written once by the other implementation, whose codecs are the
/// reference libraries (lz4 and zstd in C), so that a change of both sides at once is noticed too.
const GOLDEN: [(Codec, &str); 5] = [
    (
        Codec::None,
        "00000000000000000000005b000000040248bfd6800010000000010000018bcfe568000000018bcfe56801000000000000004d00030000000a\
         0000000214000000010102026802783c0002020a6b657920312076616c756520312076616c756520312002026801",
    ),
    (
        Codec::Gzip,
        "0000000000000000000000640000000402f3c9b6fd0011000000010000018bcfe568000000018bcfe56801000000000000004d00030000000a\
         000000021f8b08000000000000ff1361606060646462ca60aab0616062e2ca4ead543054284bcc294d45a281f28c0018e10d1a2a000000",
    ),
    (
        Codec::Snappy,
        "0000000000000000000000710000000402569c26a90012000000010000018bcfe568000000018bcfe56801000000000000004d00030000000a\
         0000000282534e415050590000000001000000010000002c2aa414000000010102026802783c0002020a6b657920312076616c756520312076\
         616c756520312002026801",
    ),
    (
        Codec::Lz4,
        "00000000000000000000006d0000000402a898220f0013000000010000018bcfe568000000018bcfe56801000000000000004d00030000000a\
         0000000204224d187440bd25000000f60c14000000010102026802783c0002020a6b657920312076616c75650800502002026801a235d9e000\
         0000003e7194e4",
    ),
    (
        Codec::Zstd,
        "00000000000000000000005f000000040297af5b820014000000010000018bcfe568000000018bcfe56801000000000000004d00030000000a\
         0000000228b52ffd00582d0100f814000000010102026802783c0002020a6b657920312076616c7565020268010100cf2863",
    ),
];

#[test]
fn the_golden_bytes_of_each_codec_are_read() {
    let plain = our_batch(2, Codec::None);
    for (codec, hex) in GOLDEN {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let batch = validate_produced(bytes.into(), &Limits::default()).unwrap();
        assert_eq!(batch.header.attributes.codec().unwrap(), codec);
        assert_eq!(batch.recompress(Compression::NONE, &LIMITS).unwrap(), plain, "{codec}");
    }
}
