//! Record batches that leave their file.

use bytes::Bytes;
use semel_kafka_gateway::Config;
use tokio::io::AsyncReadExt as _;

use crate::support::{Toy, content, fetch, metadata, start, until};

#[tokio::test]
async fn file_ranges_arrive_as_they_are_in_the_file() {
    let whole = content(10_000_003);
    for (pieces, hide_fd) in [(1, false), (1, true), (7, false), (7, true)] {
        let toy = Toy { pieces, hide_fd, ..Toy::new(&whole) };
        let server = start(Config::default(), &toy).await;
        let mut client = server.connect().await;
        // Before and behind it, other answers.
        client.send(&[metadata(1), fetch(2), metadata(3), fetch(4)].concat()).await;
        assert_eq!(client.metadata().await, Some(1));
        for id in [2, 4] {
            let (answered, records) = client.fetched().await.unwrap();
            assert_eq!((answered, records.len()), (id, pieces as usize));
            let joined: Vec<u8> = records.iter().flat_map(|bytes: &Bytes| bytes.to_vec()).collect();
            assert!(joined == whole, "{pieces} pieces, hidden descriptor: {hide_fd}");
            if id == 2 {
                assert_eq!(client.metadata().await, Some(3));
            }
        }
        let by_sendfile = server.metric("semel_kafka_sendfile_bytes_total");
        assert_eq!(by_sendfile, if hide_fd { 0 } else { 2 * whole.len() as i64 });
    }
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_and_holds_up_nobody() {
    let whole = content(8 << 20);
    let toy = Toy { pieces: 3, ..Toy::new(&whole) };
    let server = start(Config::default(), &toy).await;
    let mut slow = server.connect().await;
    slow.send(&fetch(1)).await;
    until("the socket is full", || server.metric("semel_kafka_sendfile_bytes_total") > 0).await;
    let mut other = server.connect().await;
    other.send(&metadata(2)).await;
    assert_eq!(other.metadata().await, Some(2));
    // Odd sizes, so that each write of the server is cut somewhere else.
    let length = slow.stream.read_i32().await.unwrap() as usize;
    let mut frame = Vec::new();
    let mut part = vec![0; 30_011];
    while frame.len() < length {
        let count = slow.stream.read(&mut part).await.unwrap();
        assert!(count > 0);
        frame.extend_from_slice(&part[..count]);
        tokio::task::yield_now().await;
    }
    let (_, response) =
        semel_kafka_wire::decode_response(frame.into(), semel_kafka_wire::ApiKey::Fetch, 12).unwrap();
    let semel_kafka_wire::Response::Fetch(response) = response else { panic!() };
    let mut joined = Vec::new();
    for partition in &response.responses[0].partitions {
        let semel_kafka_wire::Records::Bytes(bytes) = &partition.records else { panic!() };
        joined.extend_from_slice(bytes);
    }
    assert!(joined == whole);
}

#[tokio::test]
async fn a_file_that_is_shorter_than_promised_closes_the_connection() {
    for hide_fd in [false, true] {
        let toy = Toy { hide_fd, ..Toy::new(&content(1000)) };
        let toy = Toy { file_len: 2000, ..toy };
        let server = start(Config::default(), &toy).await;
        let mut client = server.connect().await;
        client.send(&fetch(1)).await;
        assert!(client.is_closed().await);
        let mut other = server.connect().await;
        other.send(&metadata(2)).await;
        assert_eq!(other.metadata().await, Some(2));
    }
}

#[tokio::test]
async fn a_client_that_leaves_mid_answer_leaves_nothing_behind() {
    let toy = Toy::new(&content(8 << 20));
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.send(&fetch(1)).await;
    until("some is sent", || server.metric("semel_kafka_sendfile_bytes_total") > 0).await;
    drop(client);
    until("it is gone", || server.metric("semel_kafka_connections") == 0).await;
    assert_eq!(std::sync::Arc::strong_count(&toy.file), 2, "the test's and the gateway's backend");
}
