//! What is asked of the controller: a file per operation, with its request, its answer and its rules.

pub mod alter_configs;
pub mod alter_partition;
pub mod create_cluster;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_topics;
pub mod heartbeat;
pub mod producer_ids;
pub mod register_broker;

use std::collections::BTreeSet;

/// The first of `items` that comes twice, by key.
pub(crate) fn repeated<'a, K: Ord + 'a>(items: impl IntoIterator<Item = K>) -> Option<K> {
    let mut seen = BTreeSet::new();
    items.into_iter().find_map(|key| {
        if seen.contains(&key) {
            Some(key)
        } else {
            seen.insert(key);
            None
        }
    })
}
