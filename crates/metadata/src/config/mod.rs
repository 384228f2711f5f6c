//! The table of Kafka's topic and broker configurations: names, types, defaults, bounds, and which of them may
//! change at run time.
//!
//! [`topic_def`] and [`broker_def`] find an entry, [`ConfigDef::validate`] checks a value, and [`resolve`] finds
//! the value that counts for a topic or broker, with where it came from.

mod broker;
pub mod resolve;
mod topic;

pub use broker::BROKER_CONFIGS;
pub use resolve::{Effective, Resolved, Source, StaticConfigs, resolve_broker, resolve_topic};
pub use topic::TOPIC_CONFIGS;

/// How a value is written; the names are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`, in any case.
    Boolean,
    /// A 32-bit number.
    Int,
    /// A 64-bit number.
    Long,
    /// A floating-point number.
    Double,
    /// Text.
    String,
    /// Texts separated by commas.
    List,
}

impl Kind {
    /// Kafka's number of the type, as in DescribeConfigs v3 and later.
    #[must_use]
    pub const fn kafka_type(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
        }
    }
}

/// What a value must keep to, besides its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Nothing.
    Any,
    /// A whole number, both ends inclusive.
    Range(i64, i64),
    /// -1, or a whole number in a range, both ends inclusive.
    MinusOneOr(i64, i64),
    /// A floating-point number, both ends inclusive.
    Ratio(f64, f64),
    /// One of these; for a list, each of its entries.
    OneOf(&'static [&'static str]),
}

/// Whether and how a setting may change while brokers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// For one resource or, for a broker setting, for all brokers.
    Dynamic,
    /// For one broker only.
    PerBroker,
    /// Only in the broker's file.
    ReadOnly,
    /// Kafka has it, Semel does not act on it: only the default is accepted.
    DefaultOnly,
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigDef {
    /// Kafka's name.
    pub name: &'static str,
    /// How it is written.
    pub kind: Kind,
    /// The built-in value.
    pub default: &'static str,
    /// What a value must keep to.
    pub bound: Bound,
    /// Whether it may change at run time.
    pub change: Change,
    /// For a topic's setting: the broker settings that act as its default, the strongest first, each with what
    /// its number is multiplied by (hours to milliseconds).
    pub broker_defaults: &'static [(&'static str, i64)],
    /// What it does, in a sentence.
    pub doc: &'static str,
}

/// Why a value was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// There is no such setting.
    #[error("unknown {what} config name: {name}")]
    UnknownName {
        /// "topic" or "broker".
        what: &'static str,
        /// As given.
        name: String,
    },
    /// The value is not of the type.
    #[error("invalid value {value} for configuration {name}: not a {expected}")]
    WrongType {
        /// Of the setting.
        name: &'static str,
        /// As given.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The value is of the type but not allowed.
    #[error("invalid value {value} for configuration {name}: {expected}")]
    OutOfBounds {
        /// Of the setting.
        name: &'static str,
        /// As given.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// Semel has only the default of this setting.
    #[error("configuration {name} is not supported: only its default {default:?} is accepted")]
    NotSupported {
        /// Of the setting.
        name: &'static str,
        /// The only value.
        default: &'static str,
    },
    /// The setting belongs in the broker's file.
    #[error("cannot update configuration {name} dynamically: set it in the broker's file and restart")]
    ReadOnly {
        /// Of the setting.
        name: &'static str,
    },
    /// The setting is one broker's own.
    #[error("cannot update configuration {name} for all brokers: name one")]
    PerBrokerOnly {
        /// Of the setting.
        name: &'static str,
    },
    /// Two settings that disagree.
    #[error("configurations {first} and {second} disagree: {reason}")]
    Conflict {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// How.
        reason: &'static str,
    },
}

/// The topic setting of this name.
#[must_use]
pub fn topic_def(name: &str) -> Option<&'static ConfigDef> {
    find(TOPIC_CONFIGS, name)
}

/// The broker setting of this name.
#[must_use]
pub fn broker_def(name: &str) -> Option<&'static ConfigDef> {
    find(BROKER_CONFIGS, name)
}

/// Checks one entry of a topic's configuration.
pub fn validate_topic(name: &str, value: &str) -> Result<(), InvalidConfig> {
    let def =
        topic_def(name).ok_or_else(|| InvalidConfig::UnknownName { what: "topic", name: name.to_owned() })?;
    def.validate(value)
}

/// Checks one entry of a broker's configuration (`cluster_wide`: of all brokers') that is to change at run time.
pub fn validate_broker(name: &str, value: &str, cluster_wide: bool) -> Result<(), InvalidConfig> {
    let def = broker_def(name)
        .ok_or_else(|| InvalidConfig::UnknownName { what: "broker", name: name.to_owned() })?;
    match def.change {
        Change::ReadOnly => Err(InvalidConfig::ReadOnly { name: def.name }),
        Change::PerBroker if cluster_wide => Err(InvalidConfig::PerBrokerOnly { name: def.name }),
        Change::Dynamic | Change::PerBroker | Change::DefaultOnly => def.validate(value),
    }
}

/// Checks the entries of a topic's configuration together. `get` answers the value that would count.
pub fn validate_topic_together<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<(), InvalidConfig> {
    let long = |name| {
        get(name)
            .or_else(|| topic_def(name).map(|def| def.default))
            .and_then(|v| v.trim().parse::<i64>().ok())
    };
    if long("min.compaction.lag.ms") > long("max.compaction.lag.ms") {
        return Err(InvalidConfig::Conflict {
            first: "min.compaction.lag.ms",
            second: "max.compaction.lag.ms",
            reason: "the smallest lag exceeds the largest",
        });
    }
    Ok(())
}

fn find(table: &'static [ConfigDef], name: &str) -> Option<&'static ConfigDef> {
    table.binary_search_by(|def| def.name.cmp(name)).ok().map(|at| &table[at])
}

impl ConfigDef {
    /// Checks a value's type and bounds.
    pub fn validate(&self, value: &str) -> Result<(), InvalidConfig> {
        let value = value.trim();
        if self.change == Change::DefaultOnly && value != self.default {
            return Err(InvalidConfig::NotSupported { name: self.name, default: self.default });
        }
        match self.kind {
            Kind::Boolean => {
                parse_boolean(value).map(|_| ()).ok_or_else(|| self.wrong_type(value, "boolean"))
            }
            Kind::Int => {
                let number = value.parse::<i32>().map_err(|_| self.wrong_type(value, "32-bit number"))?;
                self.in_range(value, i64::from(number))
            }
            Kind::Long => {
                let number = value.parse::<i64>().map_err(|_| self.wrong_type(value, "64-bit number"))?;
                self.in_range(value, number)
            }
            Kind::Double => {
                let number = value.parse::<f64>().map_err(|_| self.wrong_type(value, "number"))?;
                match self.bound {
                    Bound::Ratio(low, high) if !(low..=high).contains(&number) => {
                        Err(self.out_of_bounds(value, format!("must be from {low} to {high}")))
                    }
                    _ => Ok(()),
                }
            }
            Kind::String => self.is_one_of(value, value),
            Kind::List => split_list(value).try_for_each(|entry| self.is_one_of(value, entry)),
        }
    }

    fn in_range(&self, text: &str, value: i64) -> Result<(), InvalidConfig> {
        match self.bound {
            Bound::Range(low, high) if !(low..=high).contains(&value) => {
                Err(self.out_of_bounds(text, range_text(low, high)))
            }
            Bound::MinusOneOr(low, high) if value != -1 && !(low..=high).contains(&value) => {
                Err(self.out_of_bounds(text, format!("{}, or -1", range_text(low, high))))
            }
            _ => Ok(()),
        }
    }

    fn is_one_of(&self, value: &str, entry: &str) -> Result<(), InvalidConfig> {
        match self.bound {
            Bound::OneOf(allowed) if !allowed.contains(&entry) => {
                Err(self.out_of_bounds(value, format!("must be one of {}", allowed.join(", "))))
            }
            _ => Ok(()),
        }
    }

    fn wrong_type(&self, value: &str, expected: &'static str) -> InvalidConfig {
        InvalidConfig::WrongType { name: self.name, value: value.to_owned(), expected }
    }

    fn out_of_bounds(&self, value: &str, expected: String) -> InvalidConfig {
        InvalidConfig::OutOfBounds { name: self.name, value: value.to_owned(), expected }
    }
}

fn range_text(low: i64, high: i64) -> String {
    if high == i64::MAX || high == i64::from(i32::MAX) {
        format!("must be at least {low}")
    } else {
        format!("must be from {low} to {high}")
    }
}

/// The entries of a list's value.
pub fn split_list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

pub(crate) fn parse_boolean(value: &str) -> Option<bool> {
    if value.eq_ignore_ascii_case("true") {
        Some(true)
    } else if value.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_their_defaults_are_valid() {
        for table in [TOPIC_CONFIGS, BROKER_CONFIGS] {
            assert!(table.is_sorted_by(|a, b| a.name < b.name));
            for def in table {
                assert_eq!(def.validate(def.default), Ok(()), "{}", def.name);
                assert!(!def.doc.is_empty());
            }
        }
    }

    #[test]
    fn the_broker_defaults_of_topic_settings_agree_with_them() {
        for def in TOPIC_CONFIGS {
            for (at, (name, factor)) in def.broker_defaults.iter().enumerate() {
                let broker = broker_def(name).unwrap_or_else(|| panic!("{name} is missing"));
                if at == 0 && *factor == 1 && !broker.default.is_empty() {
                    assert_eq!(broker.default, def.default, "{name}");
                }
            }
        }
    }

    #[test]
    fn values_are_checked() {
        let check = |name: &str, value: &str| {
            validate_topic(name, value).map_or_else(|error| error.to_string(), |()| "ok".to_owned())
        };
        assert_eq!(check("retention.ms", "-1"), "ok");
        assert_eq!(
            check("retention.ms", "-2"),
            "invalid value -2 for configuration retention.ms: must be at least -1"
        );
        assert_eq!(
            check("retention.ms", "week"),
            "invalid value week for configuration retention.ms: not a 64-bit number"
        );
        assert_eq!(check("cleanup.policy", "compact, delete"), "ok");
        assert!(check("cleanup.policy", "compact,shred").contains("must be one of"));
        assert_eq!(check("min.cleanable.dirty.ratio", "0.25"), "ok");
        assert!(check("min.cleanable.dirty.ratio", "NaN").contains("from 0 to 1"));
        assert_eq!(check("compression.gzip.level", "-1"), "ok");
        assert!(check("compression.gzip.level", "0").contains("from 1 to 9, or -1"));
        assert_eq!(check("preallocate", "TRUE"), "ok");
        assert_eq!(check("semel.durability", "interval"), "ok");
        assert!(check("semel.durability", "maybe").contains("fsync, interval, os"));
        assert!(check("remote.storage.enable", "true").contains("not supported"));
        assert_eq!(check("nonsense", "1"), "unknown topic config name: nonsense");
    }

    #[test]
    fn broker_settings_know_when_they_may_change() {
        assert_eq!(validate_broker("log.retention.ms", "1000", true), Ok(()));
        assert!(matches!(validate_broker("log.dirs", "/x", false), Err(InvalidConfig::ReadOnly { .. })));
        assert!(matches!(validate_broker("nope", "", false), Err(InvalidConfig::UnknownName { .. })));
    }

    #[test]
    fn lags_must_agree() {
        let get = |name: &str| (name == "max.compaction.lag.ms").then_some("5");
        assert_eq!(validate_topic_together(get), Ok(()));
        let get = |name: &str| match name {
            "min.compaction.lag.ms" => Some("6"),
            "max.compaction.lag.ms" => Some("5"),
            _ => None,
        };
        assert!(validate_topic_together(get).is_err());
    }
}
