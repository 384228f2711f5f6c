//! One session: its partitions, and what its client was last told of each.

use std::collections::BTreeMap;

use semel_kafka_wire::{
    KString, Records,
    messages::{
        FetchResponse,
        fetch::{FetchPartition, FetchTopic, ForgottenTopic, PartitionData},
    },
};
use semel_model::TopicId;

/// What nobody was told yet.
const UNTOLD: i64 = -1;

/// A topic as the session's requests name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Name(KString),
    Id(TopicId),
}

#[derive(Debug)]
struct Cached {
    request: FetchPartition,
    high_watermark: i64,
    log_start_offset: i64,
    /// Its place in `Session::order`.
    place: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) uses_topic_ids: bool,
    /// That the next request must carry.
    pub(super) epoch: i32,
    partitions: BTreeMap<(Topic, i32), Cached>,
    /// Partitions by turn: who got records goes to the end, or a busy partition would starve those behind it.
    order: BTreeMap<u64, (Topic, i32)>,
    next_place: u64,
}

impl Session {
    pub(super) fn new(uses_topic_ids: bool, epoch: i32) -> Self {
        Self { uses_topic_ids, epoch, partitions: BTreeMap::new(), order: BTreeMap::new(), next_place: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Adds or changes partitions, then drops the forgotten ones.
    pub(super) fn update(&mut self, topics: Vec<FetchTopic>, forgotten: &[ForgottenTopic]) {
        for topic in topics {
            // Once per topic, and of its own: the request's name keeps its whole frame alive.
            let name = self.topic(&topic.topic.detached(), topic.topic_id);
            for request in topic.partitions {
                let key = (name.clone(), request.partition);
                if let Some(cached) = self.partitions.get_mut(&key) {
                    cached.request = request;
                } else {
                    let place = self.next_place;
                    self.next_place += 1;
                    self.order.insert(place, key.clone());
                    self.partitions.insert(
                        key,
                        Cached { request, high_watermark: UNTOLD, log_start_offset: UNTOLD, place },
                    );
                }
            }
        }
        for topic in forgotten {
            let name = self.topic(&topic.topic, topic.topic_id);
            for &partition in &topic.partitions {
                if let Some(cached) = self.partitions.remove(&(name.clone(), partition)) {
                    self.order.remove(&cached.place);
                }
            }
        }
    }

    /// All partitions by turn, neighbours of one topic together.
    pub(super) fn topics(&self) -> Vec<FetchTopic> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        let mut last: Option<&Topic> = None;
        for key in self.order.values() {
            let Some(cached) = self.partitions.get(key) else { continue };
            if last != Some(&key.0) {
                let (topic, topic_id) = match &key.0 {
                    Topic::Name(name) => (name.clone(), TopicId::ZERO),
                    Topic::Id(id) => (KString::default(), *id),
                };
                topics.push(FetchTopic { topic, topic_id, ..Default::default() });
                last = Some(&key.0);
            }
            if let Some(topic) = topics.last_mut() {
                topic.partitions.push(cached.request.clone());
            }
        }
        topics
    }

    /// Notes what a full answer tells.
    pub(super) fn learn(&mut self, response: &FetchResponse) {
        for topic in &response.responses {
            let name = self.topic(&topic.topic, topic.topic_id);
            for data in &topic.partitions {
                if let Some(cached) = self.partitions.get_mut(&(name.clone(), data.partition_index)) {
                    cached.has_news(data);
                }
            }
        }
    }

    /// Leaves in an answer what is news, and notes it.
    pub(super) fn keep_news(&mut self, response: &mut FetchResponse) {
        let mut served = Vec::new();
        for topic in &mut response.responses {
            let name = self.topic(&topic.topic, topic.topic_id);
            topic.partitions.retain(|data| {
                let key = (name.clone(), data.partition_index);
                // A partition that the session doesn't have was not asked for by it.
                let Some(cached) = self.partitions.get_mut(&key) else { return false };
                let news = cached.has_news(data);
                if records_len(&data.records) > 0 {
                    served.push(key);
                }
                news
            });
        }
        response.responses.retain(|topic| !topic.partitions.is_empty());
        for key in served {
            if let Some(cached) = self.partitions.get_mut(&key) {
                self.order.remove(&cached.place);
                cached.place = self.next_place;
                self.next_place += 1;
                self.order.insert(cached.place, key);
            }
        }
    }

    fn topic(&self, name: &KString, id: TopicId) -> Topic {
        if self.uses_topic_ids { Topic::Id(id) } else { Topic::Name(name.clone()) }
    }
}

impl Cached {
    /// Whether the client must hear of `data`; notes that it did.
    fn has_news(&mut self, data: &PartitionData) -> bool {
        let mut news = records_len(&data.records) > 0
            || data.preferred_read_replica >= 0
            || data.diverging_epoch.epoch >= 0
            || self.high_watermark != data.high_watermark
            || self.log_start_offset != data.log_start_offset;
        self.high_watermark = data.high_watermark;
        self.log_start_offset = data.log_start_offset;
        if !data.error_code.is_none() {
            // An error is always told, and so is its end: no watermark equals this one.
            self.high_watermark = UNTOLD;
            news = true;
        }
        news
    }
}

fn records_len(records: &Records) -> usize {
    match records {
        Records::Null => 0,
        Records::Bytes(bytes) => bytes.len(),
        Records::External(external) => external.len as usize,
    }
}
