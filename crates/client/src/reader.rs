//! Reading one partition, on and on.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use semel_model::{Offset, PartitionIndex};
use semel_proto::v1::{self, fetch_request::Encoding};
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::{
    Cluster, Error,
    error::{Failed, Fate, Safety},
};

/// Answers held for a slow caller; HTTP/2 flow control holds back the rest.
const READ_AHEAD: usize = 2;

/// Which records a reader sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All below the high watermark. Kafka's default.
    #[default]
    ReadUncommitted,
    /// Those below the last stable offset, without aborted ones.
    ReadCommitted,
}

/// What to read, and how far.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The topic's name.
    pub topic: String,
    /// Its partition.
    pub partition: PartitionIndex,
    /// Inclusive.
    pub from: Offset,
    /// Exclusive; `None`: no end.
    pub until: Option<Offset>,
    /// Whether to end at the high watermark (or last stable offset) rather than wait for more.
    pub stop_at_end: bool,
    /// Which records are seen.
    pub isolation: Isolation,
    /// Whole batches as they lie in the log, instead of records. The first may begin before `from`, and control
    /// and aborted batches are among them.
    pub batches: bool,
    /// Bytes of log in one answer at the most; 0 is the broker's default.
    pub max_bytes: i32,
}

impl ReadOptions {
    /// Records of a partition from an offset on, without end.
    #[must_use]
    pub fn new(topic: &str, partition: PartitionIndex, from: Offset) -> Self {
        Self {
            topic: topic.to_owned(),
            partition,
            from,
            until: None,
            stop_at_end: false,
            isolation: Isolation::default(),
            batches: false,
            max_bytes: 0,
        }
    }
}

/// The answers of a partition's leader, one after the other, whoever leads. When a stream breaks or the leader moves,
/// reading goes on at the offset it had come to; that is invisible here.
///
/// Ends after `until` or, with `stop_at_end`, at the log's end; and after an error that another try can't cure
/// (`OFFSET_OUT_OF_RANGE`: the records are gone) or that outlasted the configured attempts without progress.
#[derive(Debug)]
pub struct Reader {
    answers: mpsc::Receiver<Result<v1::FetchResponse, Error>>,
}

impl Reader {
    /// The next answer; `None`: the end.
    pub async fn next(&mut self) -> Option<Result<v1::FetchResponse, Error>> {
        self.answers.recv().await
    }

    /// An answer that has already arrived.
    pub fn try_next(&mut self) -> Option<Result<v1::FetchResponse, Error>> {
        self.answers.try_recv().ok()
    }
}

impl Stream for Reader {
    type Item = Result<v1::FetchResponse, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.answers.poll_recv(context)
    }
}

impl Cluster {
    /// Starts to read. Must be called within a tokio runtime; reading stops when the reader is dropped.
    #[must_use]
    pub fn read(&self, options: ReadOptions) -> Reader {
        let (to, answers) = mpsc::channel(READ_AHEAD);
        let reading = Reading {
            cluster: self.clone(),
            next: options.from,
            end: None,
            failures: 0,
            stale: 0,
            to,
            options,
        };
        tokio::spawn(reading.run());
        Reader { answers }
    }
}

struct Reading {
    cluster: Cluster,
    options: ReadOptions,
    to: mpsc::Sender<Result<v1::FetchResponse, Error>>,
    next: Offset,
    /// Where the log ended in the last answer of this stream: HW or LSO, by isolation.
    end: Option<Offset>,
    /// In a row, without an answer in between.
    failures: u32,
    /// The version of the topic's view that proved wrong.
    stale: u64,
}

enum Ended {
    /// All that was asked for was read.
    Finished,
    /// The caller is gone.
    Dropped,
    Failed(Failed),
}

impl Reading {
    async fn run(mut self) {
        let doing = format!("read {}-{} at offset", self.options.topic, self.options.partition);
        loop {
            let failed = match self.stream().await {
                Ended::Finished | Ended::Dropped => return,
                Ended::Failed(failed) => failed,
            };
            self.failures += 1;
            let bound = self.cluster.config().attempts.max(1);
            if !failed.may_retry(Safety::Repeatable) || self.failures >= bound {
                let doing = format!("{doing} {}", self.next);
                // A dropped reader has nobody to tell.
                let _ = self.to.send(Err(failed.into_error(&doing, self.failures, false))).await;
                return;
            }
            tracing::debug!(
                topic = self.options.topic,
                partition = %self.options.partition,
                next_offset = %self.next,
                error = %failed.error,
                "reading resumes"
            );
            let wait = self.cluster.backoff(self.failures);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.to.closed() => return,
            }
        }
    }

    async fn stream(&mut self) -> Ended {
        if self.options.until.is_some_and(|until| self.next >= until) {
            return Ended::Finished;
        }
        let to = self.to.clone();
        let opened = tokio::select! {
            opened = self.open() => opened,
            () = to.closed() => return Ended::Dropped,
        };
        let (address, mut answers) = match opened {
            Ok(opened) => opened,
            Err(failed) => return Ended::Failed(failed),
        };
        self.end = None;
        loop {
            let answer = tokio::select! {
                answer = answers.message() => answer,
                () = self.to.closed() => return Ended::Dropped,
            };
            match answer {
                Ok(Some(answer)) => {
                    let next = Offset(answer.next_offset);
                    if next < self.next {
                        let text = format!("the broker went back from offset {} to {next}", self.next);
                        let error = v1::Error::new(v1::ErrorCode::UnknownServerError, text);
                        return Ended::Failed(Failed::answered(&address, error));
                    }
                    self.failures = 0;
                    self.next = next;
                    self.end = Some(Offset(match self.options.isolation {
                        Isolation::ReadUncommitted => answer.high_watermark,
                        Isolation::ReadCommitted => answer.last_stable_offset,
                    }));
                    if self.to.send(Ok(answer)).await.is_err() {
                        return Ended::Dropped;
                    }
                }
                Ok(None) if self.finished() => return Ended::Finished,
                Ok(None) => {
                    let error =
                        v1::Error::new(v1::ErrorCode::NetworkException, "the broker ended the stream");
                    return Ended::Failed(Failed { address, error, fate: Fate::Unknown });
                }
                Err(status) => return Ended::Failed(Failed::status(&address, &status)),
            }
        }
    }

    /// Whether a stream that ended without an error had reached its end; a broker that stops ends its streams too.
    fn finished(&self) -> bool {
        let at_until = self.options.until.is_some_and(|until| self.next >= until);
        // Without an answer there was nothing to read.
        at_until || (self.options.stop_at_end && self.end.is_none_or(|end| self.next >= end))
    }

    async fn open(&mut self) -> Result<(String, tonic::Streaming<v1::FetchResponse>), Failed> {
        let options = &self.options;
        let route = self.cluster.route(&options.topic, options.partition, self.stale).await?;
        // If this stream breaks, the leader is looked up again.
        self.stale = route.version;
        let mut client = self.cluster.log_client(&route.address)?;
        let request = v1::FetchRequest {
            topic: options.topic.clone(),
            partition: options.partition.get(),
            offset: self.next.get(),
            isolation: options.isolation.to_proto().into(),
            encoding: if options.batches { Encoding::Batches } else { Encoding::Records }.into(),
            end_offset: options.until.map(Offset::get),
            max_bytes: options.max_bytes,
            stop_at_end: options.stop_at_end,
        };
        let answers = self.cluster.settle(&route.address, client.fetch(request)).await?;
        Ok((route.address, answers))
    }
}

impl Isolation {
    pub(crate) fn to_proto(self) -> v1::Isolation {
        match self {
            Self::ReadUncommitted => v1::Isolation::ReadUncommitted,
            Self::ReadCommitted => v1::Isolation::ReadCommitted,
        }
    }
}
