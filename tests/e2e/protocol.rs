//! Exact answers that clients rely on, where another broker was once wrong. Each was first run on Apache Kafka 4.4.0.

use anyhow::{Result, ensure};
use semel_tests::batch::{Batch, Producer};
use semel_tests::clock;
use semel_tests::node::{Dev, Kind};
use semel_tests::wire::{Conn, Produced, Reader, code};

const AT: i64 = 1_750_000_000_000;

fn send(conn: &mut Conn, topic: &str, producer: Producer, sequence: i32) -> Result<Produced> {
    conn.produce(
        topic,
        0,
        &Batch::of(clock::unix_ms(), &[(None, Some(b"x"))]).by(producer, sequence).encode(),
    )
}

/// The retry of an acknowledged batch gets its first offset; a gap, an old epoch and a forgotten batch get an error.
#[test]
fn retries_gaps_and_epochs() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("t", 1, &[])?;
    let producer = conn.init_producer_id()?;
    let ok = |offset| Produced { code: code::NONE, base_offset: offset };
    for sequence in 0..7 {
        ensure!(send(&mut conn, "t", producer, sequence)? == ok(i64::from(sequence)));
    }
    // Once more with the table in memory, once more with the table read back after a crash.
    for round in 0..2 {
        for sequence in (0..7).rev() {
            let got = send(&mut conn, "t", producer, sequence)?;
            // Kafka's snapshot keeps one batch of each producer, and after a crash so does Kafka.
            let forgot = node.kind() == Kind::Kafka && round == 1 && sequence < 6;
            if sequence >= 2 && !forgot {
                ensure!(got == ok(i64::from(sequence)), "round {round}, {sequence} again: {got:?}");
            } else {
                ensure!(
                    got.code == code::OUT_OF_ORDER_SEQUENCE_NUMBER,
                    "round {round}, {sequence} again: {got:?}"
                );
            }
        }
        node.kill()?;
        node.launch()?;
        conn = Conn::open(node.kafka())?;
        conn.await_topic("t", 1)?;
    }
    ensure!(send(&mut conn, "t", producer, 8)?.code == code::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let next = Producer { epoch: producer.epoch + 1, ..producer };
    ensure!(send(&mut conn, "t", next, 0)? == ok(7));
    ensure!(send(&mut conn, "t", producer, 7)?.code == code::INVALID_PRODUCER_EPOCH);
    let later = Producer { epoch: producer.epoch + 2, ..producer };
    ensure!(send(&mut conn, "t", later, 5)?.code == code::OUT_OF_ORDER_SEQUENCE_NUMBER);
    ensure!(conn.list_offset("t", 0, -1)?.2 == 8);
    node.stop()
}

/// Deleting a producer's records does not make the node forget the producer.
#[test]
fn a_producer_goes_on_after_its_records_were_deleted() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("t", 1, &[])?;
    let producer = conn.init_producer_id()?;
    for sequence in 0..3 {
        ensure!(send(&mut conn, "t", producer, sequence)?.code == code::NONE);
    }
    // DeleteRecords v1 up to the high watermark.
    let body = semel_tests::wire::Body::new().i32(1).str("t").i32(1).i32(0).i64(-1).i32(20_000);
    let answer = conn.call(21, 1, &body)?;
    let mut r = Reader(&answer);
    let (_throttle, _topics, _name, _partitions, _index) = (r.i32()?, r.i32()?, r.str()?, r.i32()?, r.i32()?);
    let (low, error) = (r.i64()?, r.i16()?);
    ensure!((low, error) == (3, code::NONE), "low watermark {low}, error {error}");
    ensure!(send(&mut conn, "t", producer, 3)? == Produced { code: code::NONE, base_offset: 3 });
    ensure!(send(&mut conn, "t", producer, 2)? == Produced { code: code::NONE, base_offset: 2 });
    node.stop()?;
    node.launch()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.await_topic("t", 1)?;
    ensure!(send(&mut conn, "t", producer, 4)? == Produced { code: code::NONE, base_offset: 4 });
    ensure!(conn.fetch("t", 0, 0, 1000)?.code == code::OFFSET_OUT_OF_RANGE);
    node.stop()
}

/// One batch above the limit is refused; one batch above the reader's limit is still read.
#[test]
fn size_limits() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("t", 1, &[("max.message.bytes", "2000")])?;
    let of_size = |size: usize| {
        let mut batch = Batch::of(AT, &[(None, Some(&vec![b'x'; size - 80]))]).encode();
        for pad in 0..20 {
            batch = Batch::of(AT, &[(None, Some(&vec![b'x'; size - 80 + pad]))]).encode();
            if batch.len() == size {
                break;
            }
        }
        batch
    };
    let (fits, too_large) = (of_size(2000), of_size(2001));
    ensure!((fits.len(), too_large.len()) == (2000, 2001));
    ensure!(conn.produce("t", 0, &fits)?.code == code::NONE);
    let refused = conn.produce("t", 0, &too_large)?;
    ensure!(refused == Produced { code: code::MESSAGE_TOO_LARGE, base_offset: -1 }, "{refused:?}");
    let got = conn.fetch("t", 0, 0, 100)?;
    ensure!(got.records.len() == 2000, "{} bytes of a batch of 2000", got.records.len());
    node.stop()
}

/// A topic made again under its name is a new topic.
#[test]
fn a_topic_deleted_and_made_again() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    for round in 0..5 {
        conn.create_topic("again", 1, &[])?;
        ensure!(conn.list_offset("again", 0, -1)?.2 == 0, "round {round}: not empty");
        let producer = conn.init_producer_id()?;
        for sequence in 0..3 {
            ensure!(send(&mut conn, "again", producer, sequence)?.code == code::NONE, "round {round}");
        }
        conn.delete_topic("again")?;
    }
    node.stop()?;
    node.launch()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("again", 1, &[])?;
    let ends = (conn.list_offset("again", 0, -2)?, conn.list_offset("again", 0, -1)?);
    ensure!((ends.0.2, ends.1.2) == (0, 0), "{ends:?}");
    ensure!(conn.fetch("again", 0, 3, 1000)?.code == code::OFFSET_OUT_OF_RANGE);
    node.stop()
}
