//! Requests are called and answered in order.

use semel_kafka_gateway::Config;
use semel_kafka_wire::{ApiKey, KString, Response, messages::ApiVersionsRequest};

use crate::support::{Toy, bytes, fetch, metadata, produce, start, until};

#[tokio::test]
async fn answers_leave_in_order_while_later_requests_are_worked_on() {
    let toy = Toy::new(b"records");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    // Those that wait for the gate open in the reverse of their order.
    let mut all = Vec::new();
    for (id, gate) in [(1, 3), (2, 2), (3, 1)] {
        all.extend(produce(id, -1, gate));
    }
    all.extend(produce(4, 1, 40));
    all.extend(fetch(5));
    all.extend(metadata(6));
    client.send(&all).await;
    until("all are called", || toy.calls() == 6).await;
    assert_eq!(*toy.calls.lock().unwrap(), [1, 2, 3, 4, 5, 6]);
    toy.gate.send_replace(2);
    until("two are done, but not the first", || toy.waiting.load(std::sync::atomic::Ordering::SeqCst) == 1)
        .await;
    toy.gate.send_replace(3);
    for expected in [(1, 3), (2, 2), (3, 1), (4, 40)] {
        assert_eq!(client.produced().await, Some(expected));
    }
    assert_eq!(client.fetched().await.unwrap().0, 5);
    assert_eq!(client.metadata().await, Some(6));
}

#[tokio::test]
async fn acks_zero_has_no_answer_and_its_failure_closes() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.send(&[produce(1, 0, 0), produce(2, 1, 20), produce(3, 0, 0), metadata(4)].concat()).await;
    assert_eq!(client.produced().await, Some((2, 20)));
    assert_eq!(client.metadata().await, Some(4));
    // What stands before it is still answered, what follows isn't.
    client.send(&[produce(5, -1, 1), produce(6, 0, -1), metadata(7)].concat()).await;
    until("all are called", || toy.calls() == 7).await;
    toy.gate.send_replace(1);
    assert_eq!(client.produced().await, Some((5, 1)));
    assert!(client.is_closed().await);
    until("nothing is left in flight", || server.metric("semel_kafka_requests_in_flight") == 0).await;
}

#[tokio::test]
async fn thousands_of_small_requests_go_through_one_connection() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let client = server.connect().await;
    let (mut read, mut write) = client.stream.into_split();
    let count = 5000;
    let sending = tokio::spawn(async move {
        for id in 0..count {
            tokio::io::AsyncWriteExt::write_all(&mut write, &produce(id, 1, id)).await.unwrap();
        }
        write
    });
    for id in 0..count {
        let length = tokio::io::AsyncReadExt::read_i32(&mut read).await.unwrap();
        let mut frame = vec![0; length as usize];
        tokio::io::AsyncReadExt::read_exact(&mut read, &mut frame).await.unwrap();
        assert_eq!(frame[..4], id.to_be_bytes());
    }
    sending.await.unwrap();
    assert_eq!(toy.calls(), count as usize);
}

#[tokio::test]
async fn api_versions_is_answered_here_and_names_the_client() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    let request = ApiVersionsRequest {
        client_software_name: KString::from_static("franz-go"),
        client_software_version: KString::from_static("1.2.3"),
        ..Default::default()
    };
    client.send(&bytes(1, 3, request.clone())).await;
    let (id, Response::ApiVersions(answer)) = client.response(ApiKey::ApiVersions, 3).await.unwrap() else {
        panic!()
    };
    assert_eq!((id, answer.error_code.code()), (1, 0));
    let keys: Vec<i16> = answer.api_keys.iter().map(|api| api.api_key).collect();
    assert_eq!(keys, [0, 1, 3, 18]);
    client.send(&metadata(2)).await;
    let (_, Response::Metadata(answer)) = client.response(ApiKey::Metadata, 9).await.unwrap() else {
        panic!()
    };
    assert_eq!(answer.cluster_id.unwrap(), "franz-go");

    // A version of the future: its header can be read, and the answer is one of version 0.
    let mut future = bytes(3, 3, request);
    future[6..8].copy_from_slice(&99_i16.to_be_bytes());
    client.send(&future).await;
    let (id, Response::ApiVersions(answer)) = client.response(ApiKey::ApiVersions, 0).await.unwrap() else {
        panic!()
    };
    assert_eq!((id, answer.error_code.code(), answer.api_keys.len()), (3, 35, 1));
    assert_eq!(toy.calls(), 1);
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name_or_by_closing() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.send(&bytes(1, 2, semel_kafka_wire::messages::HeartbeatRequest::default())).await;
    let (_, Response::Heartbeat(answer)) = client.response(ApiKey::Heartbeat, 2).await.unwrap() else {
        panic!()
    };
    assert_eq!(answer.error_code.code(), 35);
    // Produce 0 is advertised for the sake of old clients, and not served.
    let mut old = produce(2, 1, 0);
    old[6..8].copy_from_slice(&0_i16.to_be_bytes());
    client.send(&old).await;
    assert!(client.is_closed().await);
    // A key that Kafka doesn't have.
    let mut client = server.connect().await;
    let mut unknown = metadata(3);
    unknown[4..6].copy_from_slice(&999_i16.to_be_bytes());
    client.send(&unknown).await;
    assert!(client.is_closed().await);
    assert_eq!(toy.calls(), 0);
}
