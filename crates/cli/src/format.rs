//! Templates that say how a record is printed, in kcat's language.
//!
//! | token | prints |
//! |---|---|
//! | `%t` `%p` `%o` | topic, partition, offset |
//! | `%k` `%s` | key, value |
//! | `%K` `%S` | length of key, of value in bytes; -1 for null |
//! | `%R` | length of value as four bytes, big-endian; -1 for null |
//! | `%T` | time in milliseconds since the Unix epoch; -1 if there is none |
//! | `%h` | headers: `key=value,key=value`; a null value is `NULL` |
//! | `%%` | a percent sign |
//! | `\n` `\r` `\t` `\0` `\\` `\xHH` | that byte |

use semel_client::v1;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    Topic,
    Partition,
    Offset,
    Key,
    Value,
    KeyLength,
    ValueLength,
    ValueLengthBinary,
    Timestamp,
    Headers,
}

/// Why a text is no template, or has no escapes that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    /// `%` and something that isn't a token.
    #[error("%{0} is no token; there are %t %p %o %k %s %K %S %R %T %h and %%")]
    Token(char),
    /// `%` at the end.
    #[error("a single % stands at the end; write %% for a percent sign")]
    LonePercent,
    /// `\` and something that isn't an escape.
    #[error("\\{0} is no escape; there are \\n \\r \\t \\0 \\\\ and \\xHH")]
    Escape(char),
    /// `\` at the end.
    #[error("a single \\ stands at the end; write \\\\ for a backslash")]
    LoneBackslash,
    /// `\x` without two hexadecimal digits.
    #[error("\\x needs two hexadecimal digits")]
    Hex,
}

impl Template {
    /// Reads a template. Errors: a token or an escape that doesn't exist.
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            let piece = match letter {
                '\\' => {
                    literal.extend(escape(&mut letters)?);
                    continue;
                }
                '%' => match letters.next().ok_or(TemplateError::LonePercent)? {
                    '%' => {
                        literal.push(b'%');
                        continue;
                    }
                    't' => Piece::Topic,
                    'p' => Piece::Partition,
                    'o' => Piece::Offset,
                    'k' => Piece::Key,
                    's' => Piece::Value,
                    'K' => Piece::KeyLength,
                    'S' => Piece::ValueLength,
                    'R' => Piece::ValueLengthBinary,
                    'T' => Piece::Timestamp,
                    'h' => Piece::Headers,
                    other => return Err(TemplateError::Token(other)),
                },
                other => {
                    literal.extend(other.encode_utf8(&mut [0; 4]).bytes());
                    continue;
                }
            };
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(piece);
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self { pieces })
    }

    /// Value and `delimiter`, with the key and `key_delimiter` before it if there is one: what is printed without a
    /// template.
    pub(crate) fn plain(key_delimiter: Option<&[u8]>, delimiter: &[u8]) -> Self {
        let mut pieces = Vec::new();
        if let Some(key_delimiter) = key_delimiter {
            pieces.extend([Piece::Key, Piece::Literal(key_delimiter.to_vec())]);
        }
        pieces.extend([Piece::Value, Piece::Literal(delimiter.to_vec())]);
        Self { pieces }
    }

    /// Prints one record to the end of `to`; `null` stands for a null key or value.
    pub(crate) fn write(
        &self,
        topic: &str,
        partition: i32,
        record: &v1::Record,
        null: &str,
        to: &mut Vec<u8>,
    ) {
        let length =
            |bytes: Option<&[u8]>| bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        for piece in &self.pieces {
            match piece {
                Piece::Literal(bytes) => to.extend_from_slice(bytes),
                Piece::Topic => to.extend_from_slice(topic.as_bytes()),
                Piece::Partition => number(i64::from(partition), to),
                Piece::Offset => number(record.offset, to),
                Piece::Key => to.extend_from_slice(key.unwrap_or(null.as_bytes())),
                Piece::Value => to.extend_from_slice(value.unwrap_or(null.as_bytes())),
                Piece::KeyLength => number(i64::from(length(key)), to),
                Piece::ValueLength => number(i64::from(length(value)), to),
                Piece::ValueLengthBinary => to.extend_from_slice(&length(value).to_be_bytes()),
                Piece::Timestamp => number(record.timestamp_ms.unwrap_or(-1), to),
                Piece::Headers => {
                    for (at, header) in record.headers.iter().enumerate() {
                        if at > 0 {
                            to.push(b',');
                        }
                        to.extend_from_slice(header.key.as_bytes());
                        to.push(b'=');
                        to.extend_from_slice(header.value.as_deref().unwrap_or(b"NULL"));
                    }
                }
            }
        }
    }
}

/// Reads escapes only: for delimiters.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, TemplateError> {
    let mut bytes = Vec::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => bytes.extend(escape(&mut letters)?),
            other => bytes.extend(other.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Ok(bytes)
}

fn escape(letters: &mut std::str::Chars<'_>) -> Result<Option<u8>, TemplateError> {
    Ok(Some(match letters.next().ok_or(TemplateError::LoneBackslash)? {
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        '0' => 0,
        '\\' => b'\\',
        'x' => {
            let mut digit =
                || letters.next().and_then(|letter| letter.to_digit(16)).ok_or(TemplateError::Hex);
            let (high, low) = (digit()?, digit()?);
            (high * 16 + low) as u8
        }
        other => return Err(TemplateError::Escape(other)),
    }))
}

fn number(value: i64, to: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to a vector doesn't fail.
    let _ = write!(to, "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(template: &str, record: &v1::Record, null: &str) -> String {
        let mut to = Vec::new();
        match Template::parse(template) {
            Ok(template) => template.write("orders", 3, record, null, &mut to),
            Err(error) => return format!("error: {error}"),
        }
        to.escape_ascii().to_string()
    }

    #[test]
    fn tokens_print_what_they_name() {
        let record = v1::Record {
            key: Some("k1".into()),
            value: Some("v1\u{e9}".into()),
            headers: vec![
                v1::Header { key: "a".to_owned(), value: Some("1".into()) },
                v1::Header { key: "a".to_owned(), value: None },
            ],
            timestamp_ms: Some(1_700_000_000_000),
            offset: 42,
        };
        for (template, printed) in [
            ("%t-%p@%o", "orders-3@42"),
            ("%k=%s", "k1=v1\\xc3\\xa9"),
            ("%K %S %R", "2 4 \\x00\\x00\\x00\\x04"),
            ("%T", "1700000000000"),
            ("%h", "a=1,a=NULL"),
            ("100%%\\n", "100%\\n"),
            ("\\t\\r\\0\\\\\\x41\\xff", "\\t\\r\\x00\\\\A\\xff"),
            ("", ""),
            ("é", "\\xc3\\xa9"),
        ] {
            assert_eq!(print(template, &record, ""), printed, "{template}");
        }
    }

    #[test]
    fn null_is_not_empty() {
        let null = v1::Record::default();
        let empty = v1::Record { key: Some("".into()), value: Some("".into()), ..v1::Record::default() };
        assert_eq!(print("%K/%S/%T/%h/%k/%s", &null, "NULL"), "-1/-1/-1//NULL/NULL");
        assert_eq!(print("%K/%S/%k/%s", &empty, "NULL"), "0/0//");
        assert_eq!(print("%R", &null, ""), "\\xff\\xff\\xff\\xff");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (template, error) in [
            ("%x", "%x is no token; there are %t %p %o %k %s %K %S %R %T %h and %%"),
            ("a%", "a single % stands at the end; write %% for a percent sign"),
            ("\\q", "\\q is no escape; there are \\n \\r \\t \\0 \\\\ and \\xHH"),
            ("a\\", "a single \\ stands at the end; write \\\\ for a backslash"),
            ("\\x4", "\\x needs two hexadecimal digits"),
        ] {
            assert_eq!(print(template, &v1::Record::default(), ""), format!("error: {error}"));
        }
    }

    #[test]
    fn without_a_template_keys_are_printed_if_asked() {
        let record = v1::Record { key: Some("k".into()), value: Some("v".into()), ..v1::Record::default() };
        let mut to = Vec::new();
        Template::plain(None, b"\n").write("t", 0, &record, "", &mut to);
        Template::plain(Some(b":"), b"\0").write("t", 0, &record, "", &mut to);
        assert_eq!(to, b"v\nk:v\0");
        assert_eq!(unescape("\\t|\\x00").unwrap(), b"\t|\0");
    }
}
