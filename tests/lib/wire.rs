//! A Kafka connection for tests and load: requests written by hand, in the newest versions before flexible headers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::batch::Producer;
use crate::wait;

/// How long a test waits for any answer.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The error codes that tests name.
pub mod code {
    /// Success.
    pub const NONE: i16 = 0;
    /// Offset out of range.
    pub const OFFSET_OUT_OF_RANGE: i16 = 1;
    /// The topic or partition is not known (yet).
    pub const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    /// No leader (yet).
    pub const LEADER_NOT_AVAILABLE: i16 = 5;
    /// Asked the wrong node.
    pub const NOT_LEADER_OR_FOLLOWER: i16 = 6;
    /// A batch above the topic's limit.
    pub const MESSAGE_TOO_LARGE: i16 = 10;
    /// A sequence that does not follow.
    pub const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
    /// An older epoch of the producer.
    pub const INVALID_PRODUCER_EPOCH: i16 = 47;
}

/// A request's body being written.
#[derive(Debug, Default, Clone)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// An empty body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Appends an `i8`.
    #[must_use]
    pub fn i8(mut self, v: i8) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    /// Appends an `i16`.
    #[must_use]
    pub fn i16(mut self, v: i16) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    /// Appends an `i32`.
    #[must_use]
    pub fn i32(mut self, v: i32) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    /// Appends an `i64`.
    #[must_use]
    pub fn i64(mut self, v: i64) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    /// Appends a string with a 16-bit length.
    #[must_use]
    pub fn str(mut self, v: &str) -> Self {
        self = self.i16(i16::try_from(v.len()).unwrap_or(i16::MAX));
        self.0.extend_from_slice(v.as_bytes());
        self
    }
    /// Appends bytes with a 32-bit length.
    #[must_use]
    pub fn bytes(mut self, v: &[u8]) -> Self {
        self = self.i32(i32::try_from(v.len()).unwrap_or(i32::MAX));
        self.0.extend_from_slice(v);
        self
    }
}

/// An answer's body being read.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().context("the answer is cut off")?;
        self.0 = rest;
        Ok(*head)
    }
    /// Reads an `i8`.
    ///
    /// # Errors
    /// The answer is too short; so for all of these.
    pub fn i8(&mut self) -> Result<i8> {
        self.take().map(i8::from_be_bytes)
    }
    /// Reads an `i16`.
    ///
    /// # Errors
    /// The answer is too short.
    pub fn i16(&mut self) -> Result<i16> {
        self.take().map(i16::from_be_bytes)
    }
    /// Reads an `i32`.
    ///
    /// # Errors
    /// The answer is too short.
    pub fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_be_bytes)
    }
    /// Reads an `i64`.
    ///
    /// # Errors
    /// The answer is too short.
    pub fn i64(&mut self) -> Result<i64> {
        self.take().map(i64::from_be_bytes)
    }
    /// Reads bytes with a 32-bit length; none for -1.
    ///
    /// # Errors
    /// The answer is too short.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.i32()?;
        self.skip(usize::try_from(length).unwrap_or(0))
    }
    /// Reads a string with a 16-bit length; empty for null.
    ///
    /// # Errors
    /// The answer is too short, or not UTF-8.
    pub fn str(&mut self) -> Result<&'a str> {
        let length = self.i16()?;
        Ok(std::str::from_utf8(self.skip(usize::try_from(length).unwrap_or(0))?)?)
    }
    /// Takes `n` bytes.
    ///
    /// # Errors
    /// The answer is too short.
    pub fn skip(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).context("the answer is cut off")?;
        self.0 = rest;
        Ok(head)
    }
}

/// A whole request with its length and header (version 1: not flexible).
#[must_use]
pub fn frame(key: i16, version: i16, correlation: i32, body: &Body) -> Vec<u8> {
    let header = Body::new().i16(key).i16(version).i32(correlation).str("semel-tests");
    let length = header.0.len() + body.0.len();
    let mut out = Body::new().i32(i32::try_from(length).unwrap_or(i32::MAX)).0;
    out.extend_from_slice(&header.0);
    out.extend_from_slice(&body.0);
    out
}

/// Where the correlation id lies in a [`frame`].
pub const CORRELATION_AT: usize = 8;

/// What became of a connection after bytes were written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The node closed it.
    Closed,
    /// The node answered with a frame of this many bytes.
    Answered(usize),
    /// Neither, in the time given.
    Silent,
}

/// One connection, loopback only.
#[derive(Debug)]
pub struct Conn {
    /// The socket, for tests that write what is no request.
    pub stream: TcpStream,
    correlation: i32,
}

/// The answer to a produce request for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Produced {
    /// Error code.
    pub code: i16,
    /// Offset of the first record, or -1.
    pub base_offset: i64,
}

/// The answer to a fetch request for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Error code.
    pub code: i16,
    /// High watermark, exclusive.
    pub high_watermark: i64,
    /// Record batches.
    pub records: Vec<u8>,
}

impl Conn {
    /// Connects.
    ///
    /// # Errors
    /// The address is not loopback, or no one listens.
    pub fn open(address: SocketAddr) -> Result<Self> {
        ensure!(address.ip().is_loopback(), "tests speak to loopback only, not {address}");
        let stream = TcpStream::connect_timeout(&address, LIMIT)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream, correlation: 0 })
    }

    /// Sends one request and reads its answer: the bytes after the correlation id.
    ///
    /// # Errors
    /// The node closed the connection, took too long or answered another request.
    pub fn call(&mut self, key: i16, version: i16, body: &Body) -> Result<Vec<u8>> {
        self.correlation += 1;
        self.stream.write_all(&frame(key, version, self.correlation, body))?;
        let answer = read_frame(&mut self.stream)?;
        let mut reader = Reader(&answer);
        ensure!(reader.i32()? == self.correlation, "an answer to another request");
        Ok(reader.0.to_vec())
    }

    /// Writes raw bytes and looks what becomes of the connection within `limit`.
    ///
    /// # Errors
    /// The socket failed in a way that is no close.
    pub fn provoke(&mut self, bytes: &[u8], limit: Duration) -> Result<Fate> {
        // The node may close before it has read everything.
        match self.stream.write_all(bytes) {
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(Fate::Closed);
            }
            other => other?,
        }
        self.fate(limit)
    }

    /// What becomes of the connection within `limit`.
    ///
    /// # Errors
    /// The socket failed in a way that is no close.
    pub fn fate(&mut self, limit: Duration) -> Result<Fate> {
        self.stream.set_read_timeout(Some(limit))?;
        let got = read_frame(&mut self.stream);
        self.stream.set_read_timeout(Some(LIMIT))?;
        match got {
            Ok(frame) => Ok(Fate::Answered(frame.len())),
            Err(e) => match e.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    Ok(Fate::Closed)
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(Fate::Silent),
                _ => Err(e.into()),
            },
        }
    }

    /// `ApiVersions` v0: the simplest sign of life.
    ///
    /// # Errors
    /// No good answer.
    pub fn api_versions(&mut self) -> Result<()> {
        let answer = self.call(18, 0, &Body::new())?;
        ensure!(Reader(&answer).i16()? == code::NONE, "ApiVersions failed");
        Ok(())
    }

    /// `CreateTopics` v4 with replication factor 1, and waits until each partition has a leader.
    ///
    /// # Errors
    /// The topic can't be created.
    pub fn create_topic(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<()> {
        let count = i32::try_from(configs.len())?;
        let mut body = Body::new().i32(1).str(topic).i32(partitions).i16(1).i32(0).i32(count);
        for (key, value) in configs {
            body = body.str(key).str(value);
        }
        let answer = self.call(19, 4, &body.i32(20_000).i8(0))?;
        let mut r = Reader(&answer);
        let (_throttle, _count, name) = (r.i32()?, r.i32()?, r.str()?);
        let (code, message) = (r.i16()?, r.str()?);
        ensure!(code == code::NONE, "creating {name}: error {code} {message}");
        self.await_topic(topic, partitions)
    }

    /// Waits until every partition has a leader that answers, as after a start or a creation clients do by themselves.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn await_topic(&mut self, topic: &str, partitions: i32) -> Result<()> {
        // The metadata may name a leader before that leader has heard of it.
        wait::until(format!("leaders of {topic}"), LIMIT, || {
            Ok((self.has_leaders(topic, partitions)? && self.has_ends(topic, partitions)?).then_some(()))
        })
    }

    fn has_ends(&mut self, topic: &str, partitions: i32) -> Result<bool> {
        let mut body = Body::new().i32(-1).i8(0).i32(1).str(topic).i32(partitions);
        for partition in 0..partitions {
            body = body.i32(partition).i32(-1).i64(-1);
        }
        let answer = self.call(2, 5, &body)?;
        let mut r = Reader(&answer);
        let (_throttle, _topics, _name) = (r.i32()?, r.i32()?, r.str()?);
        let mut ready = true;
        for _ in 0..r.i32()? {
            let (_index, code) = (r.i32()?, r.i16()?);
            ready &= code == code::NONE;
            r.skip(20)?;
        }
        Ok(ready)
    }

    /// `DeleteTopics` v3.
    ///
    /// # Errors
    /// The topic can't be deleted.
    pub fn delete_topic(&mut self, topic: &str) -> Result<()> {
        let answer = self.call(20, 3, &Body::new().i32(1).str(topic).i32(20_000))?;
        let mut r = Reader(&answer);
        let (_throttle, _count, name, code) = (r.i32()?, r.i32()?, r.str()?, r.i16()?);
        ensure!(code == code::NONE, "deleting {name}: error {code}");
        Ok(())
    }

    fn has_leaders(&mut self, topic: &str, partitions: i32) -> Result<bool> {
        // Metadata v4, not creating.
        let answer = self.call(3, 4, &Body::new().i32(1).str(topic).i8(0))?;
        let mut r = Reader(&answer);
        let _throttle = r.i32()?;
        for _ in 0..r.i32()? {
            let (_id, _host, _port, _rack) = (r.i32()?, r.str()?, r.i32()?, r.str()?);
        }
        let (_cluster, _controller, _topics) = (r.str()?, r.i32()?, r.i32()?);
        if r.i16()? != code::NONE {
            return Ok(false);
        }
        let (_name, _internal) = (r.str()?, r.i8()?);
        let mut led = 0;
        for _ in 0..r.i32()? {
            let (code, _index, leader) = (r.i16()?, r.i32()?, r.i32()?);
            led += i32::from(code == code::NONE && leader >= 0);
            for _ in 0..2 {
                let replicas = usize::try_from(r.i32()?)?;
                r.skip(replicas * 4)?;
            }
        }
        Ok(led == partitions)
    }

    /// `InitProducerId` v1 for an idempotent producer.
    ///
    /// # Errors
    /// None is given.
    pub fn init_producer_id(&mut self) -> Result<Producer> {
        wait::until("a producer id", LIMIT, || {
            let answer = self.call(22, 1, &Body::new().i16(-1).i32(60_000))?;
            let mut r = Reader(&answer);
            let (_throttle, code) = (r.i32()?, r.i16()?);
            match code {
                code::NONE => Ok(Some(Producer { id: r.i64()?, epoch: r.i16()? })),
                // COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS: not yet.
                14 | 15 | 51 => Ok(None),
                other => bail!("InitProducerId: error {other}"),
            }
        })
    }

    /// `Produce` v7 of one encoded batch with acks=all.
    ///
    /// # Errors
    /// The connection failed; an error code is no error here.
    pub fn produce(&mut self, topic: &str, partition: i32, batch: &[u8]) -> Result<Produced> {
        let answer = self.call(0, 7, &produce_body(topic, -1, &[(partition, batch)]))?;
        let mut r = Reader(&answer);
        let (_topics, _name, _partitions, _index) = (r.i32()?, r.str()?, r.i32()?, r.i32()?);
        Ok(Produced { code: r.i16()?, base_offset: r.i64()? })
    }

    /// `Fetch` v11 without a session, of at most `max` bytes (one batch at least).
    ///
    /// # Errors
    /// The connection failed; an error code is no error here.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64, max: i32) -> Result<Fetched> {
        let answer = self.call(1, 11, &fetch_body(topic, &[(partition, offset)], max, max))?;
        let mut r = Reader(&answer);
        let (_throttle, code, _session, _topics, _name, _partitions) =
            (r.i32()?, r.i16()?, r.i32()?, r.i32()?, r.str()?, r.i32()?);
        ensure!(code == code::NONE, "fetch: error {code}");
        let part = fetched_partition(&mut r)?;
        Ok(Fetched { code: part.code, high_watermark: part.high_watermark, records: part.records.to_vec() })
    }

    /// `ListOffsets` v5; `timestamp` -1 asks for the end, -2 for the start. Gives (code, timestamp, offset).
    ///
    /// # Errors
    /// The connection failed; an error code is no error here.
    pub fn list_offset(&mut self, topic: &str, partition: i32, timestamp: i64) -> Result<(i16, i64, i64)> {
        let body = Body::new().i32(-1).i8(0).i32(1).str(topic).i32(1).i32(partition).i32(-1).i64(timestamp);
        let answer = self.call(2, 5, &body)?;
        let mut r = Reader(&answer);
        let (_throttle, _topics, _name, _partitions, _index) =
            (r.i32()?, r.i32()?, r.str()?, r.i32()?, r.i32()?);
        Ok((r.i16()?, r.i64()?, r.i64()?))
    }

    /// All batches of a partition from its start to its high watermark, as one run of bytes.
    ///
    /// # Errors
    /// A fetch fails or gives nothing below the high watermark.
    pub fn read_all(&mut self, topic: &str, partition: i32) -> Result<Vec<u8>> {
        let (_, _, mut offset) = self.list_offset(topic, partition, -2)?;
        let mut all = Vec::new();
        loop {
            let got = self.fetch(topic, partition, offset, 8 << 20)?;
            ensure!(got.code == code::NONE, "fetch at {offset}: error {}", got.code);
            let Some(last) = crate::batch::batches(&got.records).last() else {
                ensure!(offset >= got.high_watermark, "nothing at {offset}, below {}", got.high_watermark);
                return Ok(all);
            };
            all.extend_from_slice(&got.records);
            offset = last.last_offset + 1;
        }
    }
}

/// The body of a `Produce` v7 request for one topic.
#[must_use]
pub fn produce_body(topic: &str, acks: i16, parts: &[(i32, &[u8])]) -> Body {
    let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
    let mut body = Body::new().i16(-1).i16(acks).i32(30_000).i32(1).str(topic).i32(count);
    for (partition, batch) in parts {
        body = body.i32(*partition).bytes(batch);
    }
    body
}

/// The body of a `Fetch` v11 request for one topic, without a session.
#[must_use]
pub fn fetch_body(topic: &str, parts: &[(i32, i64)], max: i32, partition_max: i32) -> Body {
    let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
    let body = Body::new().i32(-1).i32(500).i32(1).i32(max).i8(0).i32(0).i32(-1);
    let mut body = body.i32(1).str(topic).i32(count);
    for (partition, offset) in parts {
        body = body.i32(*partition).i32(-1).i64(*offset).i64(-1).i32(partition_max);
    }
    body.i32(0).str("")
}

/// One partition of a `Fetch` v11 answer.
#[derive(Debug, Clone, Copy)]
pub struct FetchedPartition<'a> {
    /// The partition.
    pub partition: i32,
    /// Error code.
    pub code: i16,
    /// High watermark, exclusive.
    pub high_watermark: i64,
    /// Record batches.
    pub records: &'a [u8],
}

/// Reads one partition of a `Fetch` v11 answer.
///
/// # Errors
/// The answer is cut off.
pub fn fetched_partition<'a>(r: &mut Reader<'a>) -> Result<FetchedPartition<'a>> {
    let (partition, code, high_watermark) = (r.i32()?, r.i16()?, r.i64()?);
    let (_last_stable, _log_start) = (r.i64()?, r.i64()?);
    let aborted = usize::try_from(r.i32()?).unwrap_or(0);
    r.skip(aborted * 16)?;
    let _preferred = r.i32()?;
    Ok(FetchedPartition { partition, code, high_watermark, records: r.bytes()? })
}

/// Reads one frame without its length.
///
/// # Errors
/// The stream ended, failed or timed out, or the length is negative.
pub fn read_frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    read_frame_into(stream, &mut buffer)?;
    Ok(buffer)
}

/// [`read_frame`] into a buffer that is used again.
///
/// # Errors
/// As [`read_frame`].
pub fn read_frame_into(stream: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length))
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "negative length"))?;
    buffer.resize(length, 0);
    stream.read_exact(buffer)
}
