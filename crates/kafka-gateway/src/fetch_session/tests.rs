//! A broker of partitions that are a high watermark each, and the scripts of what clients do.

use bytes::Bytes;
use semel_kafka_wire::{
    KString, Records,
    messages::fetch::{FetchPartition, FetchableTopicResponse, ForgottenTopic, PartitionData},
};
use semel_model::TopicId;

use super::*;

const VERSION: i16 = 11;

struct Broker {
    cache: SessionCache,
    /// Ends of topics `t` and `u`.
    ends: [i64; 2],
    error: [ErrorCode; 2],
    now: Timestamp,
}

impl Broker {
    fn new(config: SessionConfig) -> Self {
        Self {
            cache: SessionCache::new(config, 7),
            ends: [1, 1],
            error: [ErrorCode::None; 2],
            now: Timestamp(1_000_000),
        }
    }

    /// Fetches; gives the session id and the answered topics, a `+` for those with records.
    fn fetch(&self, mut request: FetchRequest) -> Result<(i32, String), ErrorCode> {
        let fetch = self.cache.begin(&mut request, VERSION, self.now)?;
        let mut response = self.read(&fetch);
        self.cache.finish(fetch, &mut response, self.now);
        if !response.error_code.is_none() {
            return Err(response.error_code);
        }
        let names: Vec<String> = response
            .responses
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(move |p| (topic.topic.to_string(), &p.records)))
            .map(
                |(name, records)| {
                    if matches!(records, Records::Bytes(b) if !b.is_empty()) { name + "+" } else { name }
                },
            )
            .collect();
        Ok((response.session_id, names.join(" ")))
    }

    fn read(&self, fetch: &SessionFetch) -> FetchResponse {
        let responses = fetch
            .topics
            .iter()
            .map(|topic| FetchableTopicResponse {
                topic: topic.topic.clone(),
                topic_id: topic.topic_id,
                partitions: topic
                    .partitions
                    .iter()
                    .map(|partition| {
                        let which = usize::from(topic.topic.as_str() == "u");
                        let more = partition.fetch_offset < self.ends[which];
                        PartitionData {
                            partition_index: partition.partition,
                            error_code: self.error[which],
                            high_watermark: self.ends[which],
                            log_start_offset: 0,
                            records: Records::Bytes(Bytes::from_static(if more { b"batch" } else { b"" })),
                            ..Default::default()
                        }
                    })
                    .collect(),
            })
            .collect();
        FetchResponse { responses, ..Default::default() }
    }
}

fn topic(name: &'static str, offset: i64) -> FetchTopic {
    topic_of(name, offset, 1)
}

fn topic_of(name: &'static str, fetch_offset: i64, partitions: i32) -> FetchTopic {
    FetchTopic {
        topic: KString::from_static(name),
        partitions: (0..partitions)
            .map(|partition| FetchPartition { partition, fetch_offset, ..Default::default() })
            .collect(),
        ..Default::default()
    }
}

fn request(session_id: i32, session_epoch: i32, topics: Vec<FetchTopic>) -> FetchRequest {
    FetchRequest { session_id, session_epoch, topics, replica_id: -1, ..Default::default() }
}

#[test]
fn a_consumer_s_life() {
    let mut broker = Broker::new(SessionConfig::default());
    let (id, names) = broker.fetch(request(0, 0, vec![topic("t", 0), topic("u", 0)])).unwrap();
    assert_eq!(names, "t+ u+");
    assert!(id > 0);
    let answer = |names: &str| Ok((id, names.to_owned()));
    assert_eq!(broker.fetch(request(id, 1, vec![topic("t", 1), topic("u", 1)])), answer(""));
    broker.ends[1] = 2;
    assert_eq!(broker.fetch(request(id, 2, vec![])), answer("u+"));
    assert_eq!(broker.fetch(request(id, 3, vec![])), answer("u+"), "it has not moved on");
    let forgotten =
        ForgottenTopic { topic: KString::from_static("u"), partitions: vec![0], ..ForgottenTopic::default() };
    let forget = FetchRequest { forgotten_topics_data: vec![forgotten], ..request(id, 4, vec![]) };
    assert_eq!(broker.fetch(forget), answer(""));
    broker.ends = [2, 3];
    assert_eq!(broker.fetch(request(id, 5, vec![])), answer("t+"));
    assert_eq!(broker.fetch(request(id, 5, vec![])), Err(ErrorCode::InvalidFetchSessionEpoch));
    assert_eq!(broker.fetch(request(id ^ 1, 6, vec![])), Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(broker.fetch(request(id, -1, vec![topic("t", 1), topic("u", 3)])), Ok((0, "t+ u".to_owned())));
    assert_eq!(broker.fetch(request(id, 6, vec![])), Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(broker.cache.stats(), SessionStats::default());
}

#[test]
fn news_is_more_than_records() {
    let mut broker = Broker::new(SessionConfig::default());
    let (id, _) = broker.fetch(request(0, 0, vec![topic("t", 1), topic("u", 1)])).unwrap();
    let mut epoch = 0;
    let mut next = |broker: &Broker| {
        epoch += 1;
        broker.fetch(request(id, epoch, vec![])).unwrap().1
    };
    assert_eq!(next(&broker), "");
    // A watermark that moved; a consumer at the end learns its lag from it.
    broker.ends[0] = 0;
    assert_eq!(next(&broker), "t");
    assert_eq!(next(&broker), "");
    // An error each time, and its end once.
    broker.error[1] = ErrorCode::NotLeaderOrFollower;
    assert_eq!(next(&broker), "u");
    assert_eq!(next(&broker), "u");
    broker.error[1] = ErrorCode::None;
    assert_eq!(next(&broker), "u");
    assert_eq!(next(&broker), "");
}

#[test]
fn who_was_served_goes_behind_the_others() {
    let broker = Broker::new(SessionConfig::default());
    let order = |fetch: &SessionFetch| -> Vec<String> {
        fetch.topics.iter().map(|topic| topic.topic.to_string()).collect()
    };
    let (id, _) = broker.fetch(request(0, 0, vec![topic("t", 0), topic("u", 1)])).unwrap();
    let fetch = broker.cache.begin(&mut request(id, 1, vec![]), VERSION, broker.now).unwrap();
    assert_eq!(order(&fetch), ["t", "u"]);
    let mut response = broker.read(&fetch);
    broker.cache.finish(fetch, &mut response, broker.now);
    let fetch = broker.cache.begin(&mut request(id, 2, vec![]), VERSION, broker.now).unwrap();
    assert_eq!(order(&fetch), ["u", "t"]);
}

#[test]
fn names_and_ids_do_not_mix_and_two_requests_at_once_are_told() {
    let broker = Broker::new(SessionConfig::default());
    let (id, _) = broker.fetch(request(0, 0, vec![topic("t", 0)])).unwrap();
    let error = broker.cache.begin(&mut request(id, 1, vec![]), 13, broker.now).unwrap_err();
    assert_eq!(error, ErrorCode::FetchSessionTopicIdError);
    let first = broker.cache.begin(&mut request(id, 1, vec![]), VERSION, broker.now).unwrap();
    let second = broker.cache.begin(&mut request(id, 2, vec![]), VERSION, broker.now).unwrap();
    let mut response = broker.read(&first);
    broker.cache.finish(first, &mut response, broker.now);
    assert_eq!((response.error_code, response.responses.len()), (ErrorCode::InvalidFetchSessionEpoch, 0));
    let mut response = broker.read(&second);
    broker.cache.finish(second, &mut response, broker.now);
    assert_eq!((response.error_code, response.session_id), (ErrorCode::None, id));
}

#[test]
fn topics_by_id_are_told_apart() {
    let broker = Broker::new(SessionConfig::default());
    let by_id = |number: u8| FetchTopic { topic_id: TopicId::from_bytes([number; 16]), ..topic("", 1) };
    let mut full = request(0, 0, vec![by_id(1), by_id(2)]);
    let fetch = broker.cache.begin(&mut full, 13, broker.now).unwrap();
    let mut response = broker.read(&fetch);
    broker.cache.finish(fetch, &mut response, broker.now);
    let forgotten = ForgottenTopic {
        topic_id: TopicId::from_bytes([1; 16]),
        partitions: vec![0],
        ..ForgottenTopic::default()
    };
    let mut next =
        FetchRequest { forgotten_topics_data: vec![forgotten], ..request(response.session_id, 1, vec![]) };
    let fetch = broker.cache.begin(&mut next, 13, broker.now).unwrap();
    assert_eq!(fetch.topics.len(), 1);
    assert_eq!(fetch.topics[0].topic_id, TopicId::from_bytes([2; 16]));
}

#[test]
fn a_crowd_of_one_off_sessions_does_not_push_out_live_ones() {
    let config = SessionConfig { slots: 10, ..SessionConfig::default() };
    let mut broker = Broker::new(config);
    let (live, _) = broker.fetch(request(0, 0, vec![topic("t", 1)])).unwrap();
    let opened =
        (0..5000).filter(|_| broker.fetch(request(0, 0, vec![topic("t", 1)])).unwrap().0 != 0).count();
    assert_eq!((opened, broker.cache.stats().sessions), (9, 10));
    assert!(broker.fetch(request(live, 1, vec![])).is_ok());

    // A follower replaces a consumer at once, a consumer only what nobody used for two minutes.
    let follower = FetchRequest { replica_id: 5, ..request(0, 0, vec![topic("t", 1)]) };
    assert!(broker.fetch(follower).unwrap().0 != 0);
    broker.now = broker.now.plus(Millis::from_secs(121));
    let _ = broker.fetch(request(live, 2, vec![]));
    assert!(broker.fetch(request(0, 0, vec![topic("t", 1)])).unwrap().0 != 0);
    assert_eq!(broker.cache.stats().sessions, 10);
    assert_eq!(broker.cache.stats().evictions, 2);
}

#[test]
fn an_old_session_yields_to_a_larger_one_even_if_it_is_used() {
    let mut broker = Broker::new(SessionConfig { slots: 1, ..SessionConfig::default() });
    let (old, _) = broker.fetch(request(0, 0, vec![topic_of("t", 1, 5)])).unwrap();
    broker.now = broker.now.plus(Millis::from_secs(121));
    broker.fetch(request(old, 1, vec![])).unwrap();
    assert_eq!(broker.fetch(request(0, 0, vec![topic_of("t", 1, 4)])).unwrap().0, 0);
    assert_ne!(broker.fetch(request(0, 0, vec![topic_of("t", 1, 6)])).unwrap().0, 0);
    assert_eq!(broker.fetch(request(old, 2, vec![])), Err(ErrorCode::FetchSessionIdNotFound));
}

#[test]
fn partitions_are_bounded_over_all_sessions() {
    let broker = Broker::new(SessionConfig { partitions_max: 10, ..SessionConfig::default() });
    let (first, _) = broker.fetch(request(0, 0, vec![topic_of("t", 1, 6)])).unwrap();
    assert_ne!(first, 0);
    assert_eq!(broker.fetch(request(0, 0, vec![topic_of("t", 1, 5)])).unwrap().0, 0);
    assert_ne!(broker.fetch(request(0, 0, vec![topic_of("t", 1, 4)])).unwrap().0, 0);
    // It grows past the bound: it ends, and its client begins anew.
    let grown = broker.fetch(request(first, 1, vec![topic_of("u", 1, 3)]));
    assert_eq!(grown, Err(ErrorCode::FetchSessionIdNotFound));
    assert_eq!(broker.cache.stats().partitions, 4);
}

#[test]
fn epochs_wrap_past_the_reserved_ones() {
    assert_eq!(next_epoch(0), 1);
    assert_eq!(next_epoch(i32::MAX), 1);
    assert_eq!(next_epoch(-1), -1);
}
