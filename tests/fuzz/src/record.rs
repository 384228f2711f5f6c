//! Record batches: what producers send, what lies in segments, and what followers are sent.

use bytes::Bytes;
use semel_model::{CoordinatorEpoch, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp};
use semel_record::{
    Batch, BatchError, BatchHeader, BatchHeaders, Batches, Codec, Compression, ControlRecord, DecodeLimits,
    EndTransactionMarker, Limits, Outcome, Record, Retained, TimestampType, control::end_txn_marker,
    validate_produced,
};

use crate::input::Input;

/// Corrects length and CRC of a batch, so that only the damage behind them is left.
pub(crate) fn reseal(bytes: &mut [u8]) {
    if bytes.len() < BatchHeader::SIZE {
        return;
    }
    let length = i32::try_from(bytes.len() - semel_record::LOG_OVERHEAD).unwrap_or(i32::MAX);
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    correct_crc(bytes);
}

fn correct_crc(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// Corrects the CRCs of all whole batches in front.
pub(crate) fn reseal_all(bytes: &mut [u8]) {
    let spans: Vec<(usize, usize)> = BatchHeaders::new(bytes)
        .map_while(Result::ok)
        .map(|(at, header)| (at, at + header.size_in_bytes()))
        .collect();
    for (start, end) in spans {
        correct_crc(&mut bytes[start..end]);
    }
}

/// One produced batch: options (u8), which records a compaction keeps (u8, one bit in eight), then the bytes.
pub fn record_batch(data: &[u8]) {
    let mut input = Input::new(data);
    let (options, keep) = (input.u8(), input.u8());
    let mut bytes = input.rest().to_vec();
    if options & 1 != 0 {
        reseal(&mut bytes);
    }
    let decode =
        DecodeLimits { decompressed_bytes_max: [0, 100, 4096, 1 << 20][usize::from(options >> 1 & 3)] };
    let limits = Limits {
        message_bytes_max: if options & 8 == 0 { 1 << 20 } else { 200 },
        timestamp_min: Timestamp(if options & 16 == 0 { i64::MIN } else { 0 }),
        timestamp_max: Timestamp(if options & 16 == 0 { i64::MAX } else { 1 << 40 }),
        keys_required: options & 32 != 0,
        decode,
    };
    let bytes = Bytes::from(bytes);
    match validate_produced(bytes.clone(), &limits) {
        Ok(batch) => {
            assert_eq!(batch.size_in_bytes(), bytes.len());
            assert!(batch.size_in_bytes() <= limits.message_bytes_max);
            check_valid(&batch, &limits);
            work_on(&batch, &decode, keep);
        }
        // What a cleaner or a consumer meets need not have come past the door.
        Err(error) => {
            let _ = error.kind();
            assert!(!error.to_string().is_empty());
            if let Ok(batch) = Batch::parse(bytes) {
                work_on(&batch, &decode, keep);
            }
        }
    }
}

/// What [`validate_produced`] promises.
fn check_valid(batch: &Batch, limits: &Limits) {
    batch.verify_crc().expect("a valid batch has the right CRC");
    let header = batch.header;
    assert_eq!(header, BatchHeader::parse(&batch.bytes).expect("it was valid"));
    assert_eq!(header.record_count, header.last_offset_delta + 1);
    if header.attributes.codec().expect("a valid batch has a known codec") != Codec::None {
        return;
    }
    let records = all_records(batch, &limits.decode).expect("an uncompressed valid batch was walked");
    assert_eq!(records.len(), header.record_count as usize);
    let largest = records.iter().map(|record| record.timestamp).max();
    assert_eq!(largest.map(|at| at.max(Timestamp::NONE)), Some(header.max_timestamp));
    for record in &records {
        assert!(!limits.keys_required || record.key.is_some());
        let timestamp = record.timestamp;
        assert!(
            timestamp == Timestamp::NONE
                || (limits.timestamp_min..=limits.timestamp_max).contains(&timestamp)
        );
    }
}

fn all_records(batch: &Batch, limits: &DecodeLimits) -> Result<Vec<Record>, BatchError> {
    batch.records(limits)?.collect()
}

/// Everything that is done to batches after they were taken in.
fn work_on(batch: &Batch, limits: &DecodeLimits, keep: u8) {
    let sealed = batch.verify_crc().is_ok();
    let stamped = batch.clone().stamped(Offset(42), LeaderEpoch(3));
    assert_eq!(stamped.verify_crc().is_ok(), sealed, "stamping touches nothing under the CRC");
    assert_eq!(stamped.bytes[..16], batch.stamped_head(Offset(42), LeaderEpoch(3)));
    let appended = batch.clone().with_append_time(Timestamp(77));
    assert_eq!(appended.verify_crc().is_ok(), sealed, "the CRC follows the header");
    assert_eq!(appended.header, BatchHeader::parse(&appended.bytes).expect("it was a header before"));
    batch.emptied().verify_crc().expect("what was made here is sealed");

    let Ok(payload) = batch.payload(limits) else { return };
    if batch.header.attributes.codec().is_ok_and(|codec| codec != Codec::None) {
        assert!(payload.bytes().len() <= limits.decompressed_bytes_max);
    }
    let records = all_records(batch, limits);
    assert_eq!(payload.check().is_ok(), records.is_ok(), "two walks over the same records");
    let Ok(records) = records else {
        let _ = batch.retain(&payload, None, |_| true);
        return;
    };
    assert_eq!(records.len(), batch.header.record_count as usize);
    for codec in Codec::ALL {
        let packed =
            batch.recompress(Compression::of(codec), limits).expect("well-formed records can be packed");
        if Ok(codec) == batch.header.attributes.codec().map_err(drop) {
            continue;
        }
        packed.verify_crc().expect("what was made here is sealed");
        let room = DecodeLimits { decompressed_bytes_max: payload.bytes().len() };
        assert_eq!(all_records(&packed, &room).expect("what was packed can be unpacked"), records, "{codec}");
    }
    let kept = |record: &Record| keep & 1 << (record.offset_delta & 7) != 0;
    for horizon in [None, Some(Timestamp(1_000_000))] {
        let retained = batch
            .retain(&payload, horizon, |view| keep & 1 << (view.offset_delta & 7) != 0)
            .expect("well-formed records can be compacted");
        let expected: Vec<Record> = records.iter().filter(|record| kept(record)).cloned().collect();
        check_retained(batch, &retained, expected, horizon);
    }
}

fn check_retained(batch: &Batch, retained: &Retained, mut expected: Vec<Record>, horizon: Option<Timestamp>) {
    let compacted = match retained {
        Retained::None => return assert!(expected.is_empty()),
        Retained::All => return assert_eq!(expected.len(), batch.header.record_count as usize),
        Retained::Some(compacted) => compacted,
    };
    compacted.verify_crc().expect("what was made here is sealed");
    let (before, after) = (batch.header, compacted.header);
    assert_eq!(
        (before.base_offset, before.last_offset_delta, before.producer_id, before.producer_epoch),
        (after.base_offset, after.last_offset_delta, after.producer_id, after.producer_epoch)
    );
    let room = DecodeLimits { decompressed_bytes_max: 1 << 24 };
    let mut found = all_records(compacted, &room).expect("what was compacted can be read");
    // Times at the ends of what 64 bits hold don't survive a new base; no clock shows them.
    let sane = |at: Timestamp| at.get().unsigned_abs() < 1 << 60;
    let times = sane(before.base_timestamp) && expected.iter().all(|record| sane(record.timestamp));
    if horizon.is_some() && !times && before.attributes.timestamp_type() == TimestampType::CreateTime {
        found.iter_mut().chain(&mut expected).for_each(|record| record.timestamp = Timestamp::NONE);
    }
    assert_eq!(found, expected);
}

/// Batches in a row, as a fetch or a segment holds them: options (u8), then the bytes.
pub fn record_walk(data: &[u8]) {
    let mut input = Input::new(data);
    let options = input.u8();
    let mut bytes = input.rest().to_vec();
    if options & 1 != 0 {
        reseal_all(&mut bytes);
    }
    let bytes = Bytes::from(bytes);
    let limits = DecodeLimits { decompressed_bytes_max: 1 << 16 };
    let mut walk = Batches::new(bytes.clone());
    let mut headers = BatchHeaders::new(&bytes);
    let mut at = 0;
    loop {
        match (walk.next(), headers.next()) {
            (Some(Ok(batch)), Some(Ok((position, header)))) => {
                assert_eq!((position, header), (at, batch.header));
                assert!(header.size_in_bytes() >= BatchHeader::SIZE);
                at += batch.size_in_bytes();
                if let Ok(records) = batch.records(&limits) {
                    let read = records.take_while(Result::is_ok).count();
                    assert!(read <= header.record_count as usize);
                }
                let _ = ControlRecord::of(&batch, &limits);
            }
            (Some(Err(one)), Some(Err(other))) => assert_eq!(one.to_string(), other.to_string()),
            (None, None) => break,
            (one, other) => panic!("two walks over the same batches differ: {one:?} {other:?}"),
        }
    }
    assert_eq!((headers.position(), walk.remainder().len()), (at, bytes.len() - at));
}

/// A control record: the length of its key (u8), key, value. The same bytes are tried as a whole control batch too.
pub fn control_record(data: &[u8]) {
    let mut input = Input::new(data);
    let length = input.u8();
    let key = (length & 0x80 == 0).then(|| input.take(usize::from(length)));
    let value = input.rest();
    for value in [None, Some(value)] {
        let Ok(ControlRecord::EndTransaction(marker)) = ControlRecord::parse(key, value) else { continue };
        let batch = end_txn_marker(marker, ProducerId(5), ProducerEpoch(1), Timestamp(9));
        let limits = DecodeLimits { decompressed_bytes_max: 0 };
        let again = ControlRecord::of(&batch, &limits).expect("a marker that was written can be read");
        assert_eq!(again, Some(ControlRecord::EndTransaction(marker)));
    }
    let mut bytes = data.to_vec();
    reseal(&mut bytes);
    if let Ok(batch) = Batch::parse(bytes.into()) {
        let _ = ControlRecord::of(&batch, &DecodeLimits { decompressed_bytes_max: 1000 });
    }
}

/// For the seeds.
pub(crate) fn marker(outcome: Outcome, producer_id: i64) -> Batch {
    let marker = EndTransactionMarker { outcome, coordinator_epoch: CoordinatorEpoch(4) };
    end_txn_marker(marker, ProducerId(producer_id), ProducerEpoch(1), Timestamp(1_000_500))
}
