//! What a client may have in flight, and how many clients there may be.

use std::sync::atomic::Ordering;

use semel_kafka_gateway::Config;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Toy, content, fetch, metadata, produce, produce_of, start, until};

#[tokio::test]
async fn requests_of_a_connection_are_bounded_and_then_go_on() {
    let toy = Toy::new(b"");
    let server = start(Config { requests_per_connection_max: 8, ..Config::default() }, &toy).await;
    let mut client = server.connect().await;
    let all: Vec<u8> = (1..=100).flat_map(|id| produce(id, -1, 1)).collect();
    client.send(&all).await;
    until("eight are called", || toy.calls() == 8).await;
    let mut other = server.connect().await;
    other.send(&metadata(0)).await;
    assert_eq!(other.metadata().await, Some(0));
    assert_eq!(toy.calls() - 1, 8, "and no more");
    toy.gate.send_replace(1);
    for id in 1..=100 {
        assert_eq!(client.produced().await, Some((id, 1)));
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_not_read_from() {
    let toy = Toy::new(&content(4 << 20));
    let server = start(Config { requests_per_connection_max: 4, ..Config::default() }, &toy).await;
    let mut client = server.connect().await;
    let all: Vec<u8> = (0..50).flat_map(fetch).collect();
    client.send(&all).await;
    until("the bound is reached", || toy.calls() >= 4).await;
    let mut other = server.connect().await;
    for id in 0..20 {
        other.send(&metadata(id)).await;
        assert_eq!(other.metadata().await, Some(id));
    }
    // What the sockets' buffers took may have made room for one or two more.
    assert!(toy.calls() - 20 <= 8, "{}", toy.calls());
    for id in 0..50 {
        assert_eq!(client.fetched().await.unwrap().0, id);
    }
}

#[tokio::test]
async fn bytes_of_a_connection_and_of_all_are_bounded() {
    const SIZE: usize = 1 << 20;
    let toy = Toy::new(b"");
    let config = Config {
        frame_bytes_max: 2 * SIZE,
        request_bytes_per_connection_max: 3 * SIZE,
        request_bytes_max: 5 * SIZE,
        ..Config::default()
    };
    let server = start(config, &toy).await;
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let (read, mut write) = server.connect().await.stream.into_split();
        readers.push(read);
        writers.push(tokio::spawn(async move {
            for id in 1..=10 {
                write.write_all(&produce_of(id, -1, 1, SIZE)).await.unwrap();
            }
            write
        }));
    }
    // 40 MiB are on their way; what is in memory is bounded (one read and one half frame may pass it).
    until("the bound is reached", || server.metric("semel_kafka_request_memory_bytes") >= 4 * SIZE as i64)
        .await;
    for _ in 0..50 {
        let memory = server.metric("semel_kafka_request_memory_bytes");
        assert!(memory <= 8 * SIZE as i64, "{memory}");
        tokio::task::yield_now().await;
    }
    assert!(toy.calls() < 12, "{}", toy.calls());
    assert!(toy.waiting.load(Ordering::SeqCst) >= 1);
    toy.gate.send_replace(1);
    for read in &mut readers {
        for id in 1..=10_i32 {
            let length = tokio::io::AsyncReadExt::read_i32(read).await.unwrap();
            let mut frame = vec![0; length as usize];
            tokio::io::AsyncReadExt::read_exact(read, &mut frame).await.unwrap();
            assert_eq!(frame[..4], id.to_be_bytes());
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    until("all is given back", || server.metric("semel_kafka_request_memory_bytes") == 0).await;
}

#[tokio::test]
async fn connections_are_bounded_in_all_and_per_address() {
    let toy = Toy::new(b"");
    let server = start(Config { connections_max: 3, ..Config::default() }, &toy).await;
    let mut first = Vec::new();
    for id in 0..3 {
        let mut client = server.connect().await;
        client.send(&metadata(id)).await;
        assert_eq!(client.metadata().await, Some(id));
        first.push(client);
    }
    // The fourth waits in the kernel's queue until one leaves.
    let mut fourth = server.connect().await;
    fourth.send(&metadata(4)).await;
    assert_eq!(server.metric("semel_kafka_connections"), 3);
    first.pop();
    assert_eq!(fourth.metadata().await, Some(4));

    let server = start(Config { connections_per_ip_max: 1, ..Config::default() }, &toy).await;
    let mut one = server.connect().await;
    one.send(&metadata(1)).await;
    assert_eq!(one.metadata().await, Some(1));
    let mut two = server.connect().await;
    assert!(two.is_closed().await);
    drop(one);
    until("its place is free", || server.metric("semel_kafka_connections") == 0).await;
    let mut three = server.connect().await;
    three.send(&metadata(3)).await;
    assert_eq!(three.metadata().await, Some(3));
}
