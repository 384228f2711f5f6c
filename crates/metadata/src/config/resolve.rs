//! Which value counts, and where it came from: topic, broker, cluster, the broker's file, built in (KIP-226).

use std::collections::BTreeMap;

use semel_model::BrokerId;

use super::{BROKER_CONFIGS, ConfigDef, TOPIC_CONFIGS, broker_def, parse_boolean, split_list};
use crate::image::{ClusterImage, Configs};

/// What a broker's own file says, by Kafka's names.
pub type StaticConfigs = BTreeMap<String, String>;

/// Where a value came from, the strongest first. The numbers are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Set for the topic.
    Topic = 1,
    /// Set for the broker at run time.
    DynamicBroker = 2,
    /// Set for all brokers at run time.
    DynamicDefaultBroker = 3,
    /// In the broker's file.
    StaticBroker = 4,
    /// Built in.
    Default = 5,
}

/// The value that counts for one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Which setting.
    pub def: &'static ConfigDef,
    /// Its value.
    pub value: String,
    /// Where from.
    pub source: Source,
    /// Every value there is for it, under its own or a synonym's name, the one that counts first.
    pub synonyms: Vec<Synonym>,
}

/// One of the values a setting could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// The name it was given under.
    pub name: &'static str,
    /// As given there.
    pub value: String,
    /// Where.
    pub source: Source,
}

/// All settings of one topic or broker. Every setting of the table is there, so the getters only answer `None`
/// for a name that is not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effective {
    entries: BTreeMap<&'static str, Resolved>,
}

impl Effective {
    /// Every setting, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Resolved> {
        self.entries.values()
    }

    /// One setting.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Resolved> {
        self.entries.get(name)
    }

    /// Its text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(|entry| entry.value.as_str())
    }

    /// Its number; the default's if the value, stored by another version, is none.
    #[must_use]
    pub fn long(&self, name: &str) -> Option<i64> {
        self.parsed(name, |text| text.parse().ok())
    }

    /// Its number, like [`long`](Self::long).
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i32> {
        self.parsed(name, |text| text.parse().ok())
    }

    /// Its number, like [`long`](Self::long).
    #[must_use]
    pub fn double(&self, name: &str) -> Option<f64> {
        self.parsed(name, |text| text.parse().ok())
    }

    /// Its truth, like [`long`](Self::long).
    #[must_use]
    pub fn boolean(&self, name: &str) -> Option<bool> {
        self.parsed(name, parse_boolean)
    }

    /// Its entries; empty for a name that is not in the table.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        split_list(self.text(name).unwrap_or_default())
    }

    fn parsed<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let entry = self.get(name)?;
        parse(entry.value.trim()).or_else(|| parse(entry.def.default))
    }
}

/// The settings of a topic as `broker` sees them.
///
/// `topic` is what was set for the topic: [`ClusterImage::topic_configs`], or what a new one would get.
#[must_use]
pub fn resolve_topic(
    image: &ClusterImage,
    broker: BrokerId,
    statics: &StaticConfigs,
    topic: &Configs,
) -> Effective {
    let entries = TOPIC_CONFIGS.iter().map(|def| {
        let mut found = Vec::new();
        if let Some(value) = topic.get(def.name) {
            found.push((value.to_string(), synonym(def.name, value, Source::Topic)));
        }
        for (name, factor) in def.broker_defaults {
            let Some(broker_setting) = broker_def(name) else { continue };
            broker_values(image, broker, statics, broker_setting, |value, entry| {
                found.push((scaled(value, *factor), entry));
            });
        }
        (def.name, pick(def, found))
    });
    Effective { entries: entries.collect() }
}

/// The settings of a broker.
#[must_use]
pub fn resolve_broker(image: &ClusterImage, broker: BrokerId, statics: &StaticConfigs) -> Effective {
    let entries = BROKER_CONFIGS.iter().map(|def| {
        let mut found = Vec::new();
        broker_values(image, broker, statics, def, |value, entry| found.push((value.to_owned(), entry)));
        (def.name, pick(def, found))
    });
    Effective { entries: entries.collect() }
}

/// The settings every broker has that was not told otherwise: what was set for all of them, and the built-in.
#[must_use]
pub fn resolve_cluster_default(image: &ClusterImage) -> Effective {
    resolve_broker(image, BrokerId::NONE, &StaticConfigs::new())
}

fn broker_values(
    image: &ClusterImage,
    broker: BrokerId,
    statics: &StaticConfigs,
    def: &'static ConfigDef,
    mut found: impl FnMut(&str, Synonym),
) {
    if let Some(value) = image.broker_configs(broker).get(def.name) {
        found(value, synonym(def.name, value, Source::DynamicBroker));
    }
    if let Some(value) = image.cluster_configs().get(def.name) {
        found(value, synonym(def.name, value, Source::DynamicDefaultBroker));
    }
    if let Some(value) = statics.get(def.name) {
        found(value, synonym(def.name, value, Source::StaticBroker));
    }
    if !def.default.is_empty() {
        found(def.default, synonym(def.name, def.default, Source::Default));
    }
}

/// The strongest source wins; within one source the stronger name, which was found first.
fn pick(def: &'static ConfigDef, mut found: Vec<(String, Synonym)>) -> Resolved {
    found.sort_by_key(|(_, entry)| entry.source);
    let (value, source) = found.first().map_or_else(
        || (def.default.to_owned(), Source::Default),
        |(value, entry)| (value.clone(), entry.source),
    );
    Resolved { def, value, source, synonyms: found.into_iter().map(|(_, entry)| entry).collect() }
}

fn synonym(name: &'static str, value: &str, source: Source) -> Synonym {
    Synonym { name, value: value.to_owned(), source }
}

/// A number in its topic setting's unit. -1 stays "no limit".
fn scaled(value: &str, factor: i64) -> String {
    if factor == 1 {
        return value.to_owned();
    }
    match value.trim().parse::<i64>() {
        Ok(number) if number >= 0 => number.saturating_mul(factor).to_string(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::record::{ConfigResource, Record};
    use semel_model::MetadataIndex;

    fn set(image: &mut ClusterImage, resource: ConfigResource, key: &str, value: &str) {
        let record = Record::ConfigChange { resource, key: key.into(), value: Some(value.into()) };
        image.apply(MetadataIndex(1), &record);
    }

    fn retention(image: &ClusterImage, statics: &StaticConfigs, topic: &Configs) -> (i64, Source) {
        let effective = resolve_topic(image, BrokerId(1), statics, topic);
        (effective.long("retention.ms").unwrap(), effective.get("retention.ms").unwrap().source)
    }

    #[test]
    fn the_strongest_source_wins() {
        let mut image = ClusterImage::new();
        let mut statics = StaticConfigs::new();
        let mut topic = Configs::new();
        assert_eq!(retention(&image, &statics, &topic), (604_800_000, Source::Default));
        statics.insert("log.retention.hours".into(), "2".into());
        assert_eq!(retention(&image, &statics, &topic), (7_200_000, Source::StaticBroker));
        statics.insert("log.retention.minutes".into(), "3".into());
        assert_eq!(retention(&image, &statics, &topic), (180_000, Source::StaticBroker));
        set(&mut image, ConfigResource::Cluster, "log.retention.ms", "50");
        assert_eq!(retention(&image, &statics, &topic), (50, Source::DynamicDefaultBroker));
        set(&mut image, ConfigResource::Broker(BrokerId(1)), "log.retention.ms", "40");
        assert_eq!(retention(&image, &statics, &topic), (40, Source::DynamicBroker));
        topic.insert(Arc::from("retention.ms"), Arc::from("-1"));
        assert_eq!(retention(&image, &statics, &topic), (-1, Source::Topic));
        let effective = resolve_topic(&image, BrokerId(1), &statics, &topic);
        let names: Vec<_> =
            effective.get("retention.ms").unwrap().synonyms.iter().map(|entry| entry.name).collect();
        assert_eq!(
            names,
            [
                "retention.ms",
                "log.retention.ms",
                "log.retention.ms",
                "log.retention.minutes",
                "log.retention.hours",
                "log.retention.hours"
            ]
        );
    }

    #[test]
    fn every_setting_has_a_typed_value() {
        let image = ClusterImage::new();
        let topic = resolve_topic(&image, BrokerId(1), &StaticConfigs::new(), &Configs::new());
        assert_eq!(topic.int("max.message.bytes"), Some(1_048_588));
        assert_eq!(topic.boolean("preallocate"), Some(false));
        assert_eq!(topic.double("min.cleanable.dirty.ratio"), Some(0.5));
        assert_eq!(topic.list("cleanup.policy").collect::<Vec<_>>(), ["delete"]);
        assert_eq!(topic.text("semel.durability"), Some("fsync"));
        assert_eq!(topic.long("flush.ms"), Some(i64::MAX));
        assert_eq!(topic.text("nonsense"), None);
        let broker = resolve_broker(&image, BrokerId(1), &StaticConfigs::new());
        assert_eq!(broker.int("num.partitions"), Some(1));
        assert_eq!(broker.boolean("auto.create.topics.enable"), Some(true));
    }
}
