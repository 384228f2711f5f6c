//! Where in a partition: `beginning`, `end`, `42`, `-10`, `@2026-11-29T21:00Z`.

use semel_client::{At, Cluster, Error, Isolation, OffsetQuery};
use semel_model::{Offset, PartitionIndex, Timestamp};

use crate::time;

/// A place in each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The log's start.
    Beginning,
    /// The high watermark, or the last stable offset.
    End,
    /// This offset.
    Offset(Offset),
    /// So many records before the end.
    Last(i64),
    /// The first record of this time or later.
    Time(Timestamp),
}

/// A text that names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is neither `beginning`, `end`, an offset, `-N` for the last N, nor `@TIME` with milliseconds since 1970 or a \
     date like 2026-11-29T21:00:00Z"
)]
pub struct PositionError;

impl std::str::FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        match text {
            "beginning" | "earliest" | "start" => return Ok(Self::Beginning),
            "end" | "latest" => return Ok(Self::End),
            _ => {}
        }
        // `s@` is kcat's way to write a start time, `e@` an end time.
        let time = ["@", "s@", "e@"].iter().find_map(|prefix| text.strip_prefix(prefix));
        if let Some(time) = time {
            return time::parse(time).map(Self::Time).ok_or(PositionError);
        }
        match text.parse::<i64>() {
            Ok(offset) if offset >= 0 && !text.starts_with('-') => Ok(Self::Offset(Offset(offset))),
            Ok(back) if back > i64::MIN => Ok(Self::Last(-back)),
            _ => Err(PositionError),
        }
    }
}

impl Position {
    /// The offset it is in a partition now.
    pub(crate) async fn resolve(
        self,
        cluster: &Cluster,
        topic: &str,
        partition: PartitionIndex,
        isolation: Isolation,
    ) -> Result<Offset, Error> {
        let find = async |at: At| {
            let query = OffsetQuery { topic: topic.to_owned(), partition, at };
            Ok::<_, Error>(cluster.find_offset(&query, isolation).await?.offset)
        };
        let known = |offset: Option<Offset>| offset.unwrap_or(Offset::ZERO);
        match self {
            Self::Offset(offset) => Ok(offset),
            Self::Beginning => Ok(known(find(At::Earliest).await?)),
            Self::End => Ok(known(find(At::Latest).await?)),
            Self::Last(back) => {
                let (start, end) = (known(find(At::Earliest).await?), known(find(At::Latest).await?));
                Ok(end.plus(-back).max(start))
            }
            Self::Time(time) => match find(At::Time(time)).await? {
                Some(offset) => Ok(offset),
                // Nothing is that late: what comes next will be.
                None => Ok(known(find(At::Latest).await?)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read() {
        for (text, position) in [
            ("beginning", Position::Beginning),
            ("end", Position::End),
            ("0", Position::Offset(Offset(0))),
            ("42", Position::Offset(Offset(42))),
            ("-10", Position::Last(10)),
            ("-0", Position::Last(0)),
            ("@1700000000000", Position::Time(Timestamp(1_700_000_000_000))),
            ("s@1970-01-02", Position::Time(Timestamp(86_400_000))),
        ] {
            assert_eq!(text.parse(), Ok(position), "{text}");
        }
        for bad in ["", "middle", "@", "@yesterday", "1.5", "--3", "-9223372036854775808"] {
            assert_eq!(bad.parse::<Position>(), Err(PositionError), "{bad}");
        }
    }
}
