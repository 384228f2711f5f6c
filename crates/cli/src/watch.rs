//! `semel cluster watch`: what changes, one line each.

use std::{collections::BTreeMap, time::Duration};

use semel_client::{Cluster, v1};
use serde_json::{Value, json};

use crate::{
    cluster::broker_json,
    failure::Failure,
    output::{Io, list, many},
    topic::topic_json,
};

/// The wait before a broken watch is taken up again; connecting has its own retries.
const PAUSE: Duration = Duration::from_millis(200);

/// What was last seen, to say what is different.
#[derive(Default)]
struct Seen {
    brokers: BTreeMap<i32, v1::describe_cluster_response::Broker>,
    /// By id.
    topics: BTreeMap<String, v1::Topic>,
    controller_epoch: i32,
}

pub(crate) async fn run(
    cluster: &Cluster,
    count: Option<u64>,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let mut seen = Seen::default();
    let mut index = 0;
    let mut messages = 0;
    // One future for the whole command: a signal between two messages is not missed.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    while count.is_none_or(|count| messages < count) {
        let mut stream = tokio::select! {
            stream = cluster.watch(index) => stream?,
            _ = &mut interrupted => return Ok(()),
        };
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                _ = &mut interrupted => return Ok(()),
            };
            // A stream that ends or breaks is taken up at another broker.
            let Ok(Some(message)) = message else { break };
            index = message.index;
            if json {
                io.print(&format!("{}\n", message_json(&message)))?;
            } else {
                for line in seen.take(message) {
                    io.print(&format!("{line}\n"))?;
                }
            }
            io.flush()?;
            messages += 1;
            if count.is_some_and(|count| messages >= count) {
                return Ok(());
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = &mut interrupted => return Ok(()),
        }
    }
    Ok(())
}

fn message_json(message: &v1::WatchClusterResponse) -> Value {
    json!({
        "index": message.index,
        "controller_epoch": message.controller_epoch,
        "full": message.full,
        "brokers": message.brokers.iter().map(broker_json).collect::<Value>(),
        "topics": message.topics.iter().map(topic_json).collect::<Value>(),
        "deleted_topic_ids": message.deleted_topic_ids,
        "removed_brokers": message.removed_brokers,
    })
}

impl Seen {
    /// What the message changes, as lines.
    fn take(&mut self, message: v1::WatchClusterResponse) -> Vec<String> {
        let mut lines = Vec::new();
        if message.controller_epoch != self.controller_epoch {
            self.controller_epoch = message.controller_epoch;
            lines.push(format!("controller epoch {}", message.controller_epoch));
        }
        let mut gone_brokers = message.removed_brokers;
        let mut gone_topics = message.deleted_topic_ids;
        if message.full {
            let here = |id: &i32| message.brokers.iter().any(|broker| broker.id == *id);
            gone_brokers.extend(self.brokers.keys().copied().filter(|id| !here(id)));
            let here = |id: &String| message.topics.iter().any(|topic| topic.topic_id == *id);
            gone_topics.extend(self.topics.keys().filter(|id| !here(id)).cloned());
        }
        for id in gone_brokers {
            if self.brokers.remove(&id).is_some() {
                lines.push(format!("broker {id} removed"));
            }
        }
        for id in gone_topics {
            if let Some(topic) = self.topics.remove(&id) {
                lines.push(format!("topic {} deleted", topic.name));
            }
        }
        for broker in message.brokers {
            let state = if broker.fenced { "fenced" } else { "serving" };
            match self.brokers.get(&broker.id) {
                Some(old) if *old == broker => {}
                Some(old) if old.fenced != broker.fenced || old.grpc_address == broker.grpc_address => {
                    lines.push(format!("broker {} {state}", broker.id));
                }
                _ => lines.push(format!("broker {} {state} at {}", broker.id, broker.grpc_address)),
            }
            self.brokers.insert(broker.id, broker);
        }
        for topic in message.topics {
            match self.topics.get(&topic.topic_id) {
                None => lines.push(format!(
                    "topic {} with {}",
                    topic.name,
                    many(topic.partitions.len() as i64, "partition")
                )),
                Some(old) => lines.extend(changes(old, &topic)),
            }
            self.topics.insert(topic.topic_id.clone(), topic);
        }
        lines.iter_mut().for_each(|line| *line = format!("{}  {line}", message.index));
        lines
    }
}

fn changes(old: &v1::Topic, new: &v1::Topic) -> Vec<String> {
    let mut lines = Vec::new();
    if old.partitions.len() != new.partitions.len() {
        lines.push(format!("topic {} has {}", new.name, many(new.partitions.len() as i64, "partition")));
    }
    for (old, now) in old.partitions.iter().zip(&new.partitions) {
        let name = format!("{}-{}", new.name, now.partition);
        if (old.leader, old.leader_epoch) != (now.leader, now.leader_epoch) {
            let leader = if now.leader < 0 { "nobody".to_owned() } else { format!("broker {}", now.leader) };
            lines.push(format!("{name} is led by {leader} in epoch {}", now.leader_epoch));
        }
        if old.isr != now.isr {
            lines.push(format!("{name} in sync: {} of {}", list(&now.isr), list(&now.replicas)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn only_what_changes_is_told() {
        let broker = |fenced| v1::describe_cluster_response::Broker {
            id: 1,
            grpc_address: "a:1".to_owned(),
            fenced,
            ..Default::default()
        };
        let topic = |leader, isr: &[i32]| v1::Topic {
            name: "t".to_owned(),
            topic_id: "T".to_owned(),
            partitions: vec![v1::Partition {
                partition: 0,
                leader,
                leader_epoch: leader,
                replicas: vec![1, 2],
                isr: isr.to_vec(),
                offline_replicas: Vec::new(),
            }],
            ..Default::default()
        };
        let message = |index, full, brokers: Vec<_>, topics: Vec<_>| v1::WatchClusterResponse {
            index,
            controller_epoch: 3,
            full,
            brokers,
            topics,
            ..Default::default()
        };
        let mut seen = Seen::default();
        let mut lines = Vec::new();
        lines.extend(seen.take(message(5, true, vec![broker(false)], vec![topic(1, &[1, 2])])));
        lines.extend(seen.take(message(6, false, vec![broker(true)], Vec::new())));
        lines.extend(seen.take(message(7, false, Vec::new(), vec![topic(2, &[2])])));
        lines.extend(seen.take(message(8, false, Vec::new(), vec![topic(-1, &[2])])));
        lines.extend(seen.take(message(9, true, vec![broker(true)], Vec::new())));
        expect![[r"
            5  controller epoch 3
            5  broker 1 serving at a:1
            5  topic t with 1 partition
            6  broker 1 fenced
            7  t-0 is led by broker 2 in epoch 2
            7  t-0 in sync: 2 of 1,2
            8  t-0 is led by nobody in epoch -1
            9  topic t deleted"]]
        .assert_eq(&lines.join("\n"));
    }
}
