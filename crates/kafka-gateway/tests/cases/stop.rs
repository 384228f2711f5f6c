//! The end of a gateway.

use std::{sync::atomic::Ordering, time::Duration};

use semel_kafka_gateway::Config;
use tokio::net::TcpStream;

use crate::support::{PATIENCE, Toy, metadata, produce, start, until};

#[tokio::test]
async fn a_stop_answers_what_is_in_flight_and_closes() {
    let toy = Toy::new(b"");
    let server = start(Config { stop_grace: PATIENCE, ..Config::default() }, &toy).await;
    let mut busy = server.connect().await;
    busy.send(&[produce(1, -1, 1), produce(2, -1, 1)].concat()).await;
    let mut idle = server.connect().await;
    idle.send(&metadata(3)).await;
    assert_eq!(idle.metadata().await, Some(3));
    until("both wait", || toy.waiting.load(Ordering::SeqCst) == 2).await;
    server.stop.cancel();
    assert!(idle.is_closed().await);
    // What comes now is too late.
    busy.send(&produce(4, 1, 1)).await;
    until("nobody accepts", || std::net::TcpStream::connect(server.address).is_err()).await;
    assert!(!server.task.is_finished());
    toy.gate.send_replace(1);
    assert_eq!(busy.produced().await, Some((1, 1)));
    assert_eq!(busy.produced().await, Some((2, 1)));
    assert!(busy.is_closed().await);
    drop(busy);
    assert_eq!(tokio::time::timeout(PATIENCE, server.task).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_cut() {
    let toy = Toy::new(b"");
    let server = start(Config { stop_grace: Duration::from_millis(20), ..Config::default() }, &toy).await;
    let mut stuck = server.connect().await;
    stuck.send(&produce(1, -1, 1)).await;
    until("it waits", || toy.waiting.load(Ordering::SeqCst) == 1).await;
    server.stop.cancel();
    assert!(stuck.is_closed().await);
    assert_eq!(tokio::time::timeout(PATIENCE, server.task).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn dropping_the_gateway_closes_everything() {
    let toy = Toy::new(b"");
    let server = start(Config::default(), &toy).await;
    let mut client = server.connect().await;
    client.send(&produce(1, -1, 1)).await;
    until("it waits", || toy.waiting.load(Ordering::SeqCst) == 1).await;
    server.task.abort();
    assert!(client.is_closed().await);
    let mut refused = false;
    for _ in 0..10_000 {
        refused = TcpStream::connect(server.address).await.is_err();
        if refused {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(refused);
}
