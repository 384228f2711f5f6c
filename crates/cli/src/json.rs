//! Records as JSON, one object a line; what `consume --json` prints, `produce --json` reads.
//!
//! ```json
//! {"topic":"t","partition":0,"offset":7,"timestamp":1700000000000,"key":"k","value":"v","headers":[{"key":"h","value":null}]}
//! ```
//!
//! `null` is null and `""` is empty. Bytes that are no UTF-8 are `{"base64":"/w=="}`. Headers are a list, because
//! their keys may repeat; an object is read as well.

use bytes::Bytes;
use semel_client::{Header, NewRecord, v1};
use semel_model::{PartitionIndex, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base64;

#[derive(Serialize)]
struct Printed<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    timestamp: Option<i64>,
    key: Option<Text<'a>>,
    value: Option<Text<'a>>,
    headers: Vec<PrintedHeader<'a>>,
}

#[derive(Serialize)]
struct PrintedHeader<'a> {
    key: &'a str,
    value: Option<Text<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(&'a str),
    Binary { base64: String },
}

impl<'a> Text<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(_) => Self::Binary { base64: base64::encode(bytes) },
        }
    }
}

/// Appends one record and a line feed to `to`.
pub(crate) fn write(topic: &str, partition: i32, record: &v1::Record, to: &mut Vec<u8>) {
    let headers = record
        .headers
        .iter()
        .map(|header| PrintedHeader { key: &header.key, value: header.value.as_deref().map(Text::new) });
    let printed = Printed {
        topic,
        partition,
        offset: record.offset,
        timestamp: record.timestamp_ms,
        key: record.key.as_deref().map(Text::new),
        value: record.value.as_deref().map(Text::new),
        headers: headers.collect(),
    };
    // Strings and numbers into memory: neither can fail.
    let _ = serde_json::to_writer(&mut *to, &printed);
    to.push(b'\n');
}

/// A record to append, as a line of JSON gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) partition: Option<PartitionIndex>,
    pub(crate) record: NewRecord,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    key: Value,
    /// Not optional: a forgotten value would be a tombstone.
    value: Value,
    #[serde(default)]
    headers: Value,
    #[serde(default)]
    partition: Option<i32>,
    #[serde(default)]
    timestamp: Option<i64>,
    /// What `consume` prints besides, and nobody may choose.
    #[serde(default, rename = "topic")]
    _topic: Option<String>,
    #[serde(default, rename = "offset")]
    _offset: Option<i64>,
}

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JsonError {
    #[error("it is no record: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("{field} must be a string, null or {{\"base64\":\"…\"}}")]
    Text { field: String },
    #[error("{field} has bad base64")]
    Base64 { field: String },
    #[error("headers must be a list of {{\"key\":…,\"value\":…}}, or an object")]
    Headers,
    #[error("partition must not be negative")]
    Partition,
}

/// Reads one line.
pub(crate) fn read(line: &[u8]) -> Result<Read, JsonError> {
    let line: Line = serde_json::from_slice(line)?;
    if line.partition.is_some_and(|partition| partition < 0) {
        return Err(JsonError::Partition);
    }
    Ok(Read {
        partition: line.partition.map(PartitionIndex),
        record: NewRecord {
            key: bytes("key", line.key)?,
            value: bytes("value", line.value)?,
            headers: headers(line.headers)?,
            timestamp: line.timestamp.map(Timestamp),
        },
    })
}

fn bytes(field: &str, value: Value) -> Result<Option<Bytes>, JsonError> {
    let wrong = || JsonError::Text { field: field.to_owned() };
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.into())),
        Value::Object(object) => match single(&object) {
            Some(("base64", Value::String(text))) => match base64::decode(text) {
                Some(bytes) => Ok(Some(bytes.into())),
                None => Err(JsonError::Base64 { field: field.to_owned() }),
            },
            _ => Err(wrong()),
        },
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(wrong()),
    }
}

fn single(object: &Map<String, Value>) -> Option<(&str, &Value)> {
    let mut entries = object.iter();
    let (key, value) = entries.next()?;
    entries.next().is_none().then_some((key.as_str(), value))
}

fn headers(value: Value) -> Result<Vec<Header>, JsonError> {
    let header = |key: String, value: Value| {
        let value = bytes(&format!("header {key}"), value)?;
        Ok(Header { key: key.into(), value })
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(object) => object.into_iter().map(|(key, value)| header(key, value)).collect(),
        Value::Array(list) => list
            .into_iter()
            .map(|one| match one {
                Value::Object(mut object) => {
                    let value = object.remove("value").unwrap_or(Value::Null);
                    match (object.remove("key"), object.is_empty()) {
                        (Some(Value::String(key)), true) => header(key, value),
                        _ => Err(JsonError::Headers),
                    }
                }
                _ => Err(JsonError::Headers),
            })
            .collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(JsonError::Headers),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(record: &v1::Record, expected: Expect) {
        let mut line = Vec::new();
        write("t", 2, record, &mut line);
        expected.assert_eq(std::str::from_utf8(&line).unwrap());
    }

    #[test]
    fn null_empty_and_binary_look_different() {
        check(
            &v1::Record::default(),
            expect![[r#"
                {"topic":"t","partition":2,"offset":0,"timestamp":null,"key":null,"value":null,"headers":[]}
            "#]],
        );
        check(
            &v1::Record {
                key: Some("".into()),
                value: Some(vec![0xff, 0].into()),
                headers: vec![
                    v1::Header { key: "h".to_owned(), value: None },
                    v1::Header { key: "h".to_owned(), value: Some("\"é\n".into()) },
                ],
                timestamp_ms: Some(5),
                offset: 9,
            },
            expect![[r#"
                {"topic":"t","partition":2,"offset":9,"timestamp":5,"key":"","value":{"base64":"/wA="},"headers":[{"key":"h","value":null},{"key":"h","value":"\"é\n"}]}
            "#]],
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |line: &str| read(line.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(r#"{"value":1}"#), r#"value must be a string, null or {"base64":"…"}"#);
        assert_eq!(error(r#"{"value":{"base64":"!"}}"#), "value has bad base64");
        assert_eq!(
            error(r#"{"value":"","headers":[1]}"#),
            r#"headers must be a list of {"key":…,"value":…}, or an object"#
        );
        assert_eq!(error(r#"{"value":"","partition":-1}"#), "partition must not be negative");
        assert!(error(r#"{"key":"k"}"#).contains("missing field `value`"));
        assert!(error(r#"{"value":"","payload":1}"#).contains("unknown field `payload`"));
        assert!(error("nonsense").starts_with("it is no record: "));
    }

    #[test]
    fn headers_may_be_an_object() {
        let found = read(br#"{"value":null,"headers":{"a":"1","b":null}}"#).unwrap().record.headers;
        let header = |key: &'static str, value: Option<&'static str>| Header {
            key: key.into(),
            value: value.map(Bytes::from),
        };
        assert_eq!(found, [header("a", Some("1")), header("b", None)]);
    }

    fn some_bytes() -> impl Strategy<Value = Option<Bytes>> {
        proptest::option::of(prop_oneof![
            ".{0,8}".prop_map(Bytes::from),
            proptest::collection::vec(any::<u8>(), 0..8).prop_map(Bytes::from),
        ])
    }

    proptest! {
        #[test]
        fn what_consume_prints_produce_reads(
            key in some_bytes(),
            value in some_bytes(),
            headers in proptest::collection::vec((".{0,4}", some_bytes()), 0..4),
            timestamp in 0..i64::MAX,
            partition in 0..i32::MAX,
        ) {
            let record = v1::Record {
                key: key.clone(),
                value: value.clone(),
                headers: headers.iter().cloned().map(|(key, value)| v1::Header { key, value }).collect(),
                timestamp_ms: Some(timestamp),
                offset: 1,
            };
            let mut line = Vec::new();
            write("t", partition, &record, &mut line);
            let headers = headers.into_iter().map(|(key, value)| Header { key: key.into(), value }).collect();
            let expected = NewRecord { key, value, headers, timestamp: Some(Timestamp(timestamp)) };
            prop_assert_eq!(read(&line).unwrap(), Read { partition: Some(PartitionIndex(partition)), record: expected });
        }
    }
}
