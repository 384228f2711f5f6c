//! Bytes that come in pieces, and bytes that are not Kafka.

use std::time::Duration;

use semel_kafka_gateway::Config;
use tokio::io::AsyncWriteExt as _;

use crate::support::{PATIENCE, Toy, metadata, produce_of, start, until};

#[tokio::test]
async fn a_request_may_come_byte_by_byte_and_two_at_once() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.stream.set_nodelay(true).unwrap();
    for byte in metadata(1) {
        client.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.metadata().await, Some(1));
    client.send(&[metadata(2), metadata(3)].concat()).await;
    assert_eq!(client.metadata().await, Some(2));
    assert_eq!(client.metadata().await, Some(3));
}

#[tokio::test]
async fn bytes_that_are_not_kafka_close_their_connection_and_no_other() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut bystander = server.connect().await;
    let with = |length: i32, rest: &[u8]| [&length.to_be_bytes(), rest].concat();
    let hostile: Vec<Vec<u8>> = vec![
        // A TLS ClientHello, and HTTP.
        vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03],
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n".to_vec(),
        with(i32::MAX, &[]),
        with((100 << 20) + 1, &[]),
        with(-1, &[]),
        with(0, &[]),
        with(3, &[0, 18, 0]),
        with(i32::MIN, &[1; 40]),
        // A frame of the right length with nonsense in it.
        with(40, &[0xff; 40]),
        with(12, &[0, 3, 0, 9, 0, 0, 0, 1, 0x7f, 0xff, 0, 0]),
    ];
    for (index, bytes) in hostile.iter().enumerate() {
        let mut client = server.connect().await;
        client.send(bytes).await;
        assert!(client.is_closed().await, "case {index}");
        bystander.send(&metadata(index as i32)).await;
        assert_eq!(bystander.metadata().await, Some(index as i32));
    }
    // A request with bytes left over, as librdkafka 2.12 sends some, is answered: Kafka passes them over.
    let mut long = metadata(6);
    long.extend_from_slice(&[0, 0, 0]);
    let length = (long.len() - 4) as i32;
    long[..4].copy_from_slice(&length.to_be_bytes());
    bystander.send(&long).await;
    assert_eq!(bystander.metadata().await, Some(6));
    // The largest legal length waits for its bytes.
    let mut client = server.connect().await;
    client.send(&with(100 << 20, &[])).await;
    let mut other = server.connect().await;
    other.send(&metadata(7)).await;
    assert_eq!(other.metadata().await, Some(7));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), client.frame()).await.is_err(),
        "it is still open"
    );
}

#[tokio::test]
async fn answers_before_a_bad_frame_still_arrive() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.send(&[metadata(1), metadata(2), vec![0xff; 4]].concat()).await;
    assert_eq!(client.metadata().await, Some(1));
    assert_eq!(client.metadata().await, Some(2));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_slow_sender_and_a_silent_one_are_closed() {
    let toy = Toy::new(b"");
    let idle = Duration::from_millis(200);
    let server = start(Config { idle_max: idle, ..Config::default() }, &toy).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.send(&[0, 0, 1]).await;
    let slow = server.connect().await;
    let (mut read, mut write) = slow.stream.into_split();
    // It never stops sending, and never finishes a frame.
    let sending = tokio::spawn(async move {
        let mut next = (100_i32 << 20).to_be_bytes().to_vec();
        while write.write_all(&next).await.is_ok() {
            next = vec![1];
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(silent.is_closed().await);
    assert!(half.is_closed().await);
    let end = tokio::time::timeout(PATIENCE, tokio::io::AsyncReadExt::read_u8(&mut read)).await.unwrap();
    assert!(end.is_err());
    tokio::time::timeout(PATIENCE, sending).await.unwrap().unwrap();
    let text = server.registry.encode();
    assert!(text.contains("semel_kafka_connections_closed_total{reason=\"idle\"} 3"), "{text}");
}

#[tokio::test]
async fn waiting_for_an_answer_is_not_idling() {
    let toy = Toy::new(b"");
    let idle = Duration::from_millis(50);
    let server = start(Config { idle_max: idle, ..Config::default() }, &toy).await;
    let mut patient = server.connect().await;
    patient.send(&crate::support::produce(1, -1, 1)).await;
    // A neighbour that idles all the while shows that the time is over, twice.
    for _ in 0..2 {
        let mut silent = server.connect().await;
        assert!(silent.is_closed().await);
    }
    toy.gate.send_replace(1);
    assert_eq!(patient.produced().await, Some((1, 1)));
}

#[tokio::test]
async fn a_crowd_that_claims_much_and_sends_little_costs_little() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let before = resident_bytes();
    let mut crowd = Vec::new();
    for _ in 0..500 {
        let mut client = server.connect().await;
        client.send(&(100_i32 << 20).to_be_bytes()).await;
        client.send(&[1]).await;
        crowd.push(client);
    }
    until("all are accepted", || server.metric("semel_kafka_connections") == 500).await;
    let mut other = server.connect().await;
    other.send(&produce_of(1, 1, 5, 1 << 20)).await;
    assert_eq!(other.produced().await, Some((1, 5)));
    let grown = resident_bytes().saturating_sub(before);
    // 50 GB claimed; both ends of 500 connections live in this process, beside the other tests.
    assert!(grown < 200 << 20, "{grown} bytes");
    assert!(server.metric("semel_kafka_request_memory_bytes") < 10 << 20);
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
}
