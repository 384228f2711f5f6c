//! Incremental fetch sessions (KIP-227), without I/O: a client names its partitions once, then only changes, and gets
//! back only partitions with news.
//!
//! For each Fetch: [`SessionCache::begin`] turns the request into the whole list of partitions to fetch;
//! [`SessionCache::finish`] takes from the response what the client knows already, and fills in the session's id.
//!
//! ```text
//! client: id 0, epoch 0, all partitions      → a full answer, and a new session's id
//!         id s, epoch 1, changed partitions  → those with news
//!         id s, epoch 2, nothing             → those with news
//!         id s, epoch -1                     → the session ends; a full answer
//! ```

mod cache;
mod session;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_kafka_wire::{
    ErrorCode,
    messages::{FetchRequest, FetchResponse, fetch::FetchTopic},
};
use semel_model::{Millis, Timestamp};

use self::{
    cache::{Cache, Candidate},
    session::Session,
};

/// No session.
const NO_SESSION: i32 = 0;
/// The epoch that asks for a new session.
const EPOCH_INITIAL: i32 = 0;
/// The epoch that fetches without a session, and ends the one it names.
const EPOCH_FINAL: i32 = -1;
/// From this version on, topics are named by their ids.
const TOPIC_IDS_FROM: i16 = 13;

/// The bounds of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The most sessions (`max.incremental.fetch.session.cache.slots`). 0 turns sessions off. Default 1000.
    pub slots: usize,
    /// The most partitions of all sessions. Past it no session is made, and one that would grow past it ends. Default
    /// 1,000,000 (about 100 MB).
    pub partitions_max: usize,
    /// How long a session is safe from being replaced by one of no greater value, and after how long without use by
    /// any. Kafka's, not configurable there: 2 min.
    pub eviction: Millis,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { slots: 1000, partitions_max: 1_000_000, eviction: Millis::from_secs(120) }
    }
}

/// The fetch sessions of a broker. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct SessionCache {
    cache: Arc<Mutex<Cache>>,
}

/// A Fetch between [`SessionCache::begin`] and [`SessionCache::finish`].
#[derive(Debug)]
pub struct SessionFetch {
    /// All partitions to fetch, in the order in which they get their share of `max_bytes`: those that were served
    /// last come last. Two entries may name one topic.
    pub topics: Vec<FetchTopic>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Sessionless,
    /// A session is made when the answer is known, if there is room.
    New {
        from_follower: bool,
        uses_topic_ids: bool,
    },
    Incremental {
        id: i32,
        session: Arc<Mutex<Session>>,
        epoch: i32,
    },
}

/// Numbers for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Sessions there are.
    pub sessions: usize,
    /// Partitions in them.
    pub partitions: usize,
    /// Sessions that others replaced, since the start.
    pub evictions: u64,
}

impl SessionCache {
    /// `seed` makes the ids hard to guess and is otherwise free: ids of an earlier life should not fit this one.
    #[must_use]
    pub fn new(config: SessionConfig, seed: u64) -> Self {
        Self { cache: Arc::new(Mutex::new(Cache::new(config, seed))) }
    }

    /// What to fetch for `request`, of version `version`. Moves the partition lists out of it.
    ///
    /// Errors: [`ErrorCode::FetchSessionIdNotFound`], [`ErrorCode::InvalidFetchSessionEpoch`],
    /// [`ErrorCode::FetchSessionTopicIdError`]; the answer is then a response of that error with session id 0 and no
    /// partitions, and the client begins a new session. Source: KIP-227, KIP-516.
    pub fn begin(
        &self,
        request: &mut FetchRequest,
        version: i16,
        now: Timestamp,
    ) -> Result<SessionFetch, ErrorCode> {
        let uses_topic_ids = version >= TOPIC_IDS_FROM;
        let topics = std::mem::take(&mut request.topics);
        if request.session_epoch == EPOCH_INITIAL || request.session_epoch == EPOCH_FINAL {
            // Whichever it is, the session it names is over.
            if request.session_id != NO_SESSION {
                self.lock().remove(request.session_id);
            }
            let kind = if request.session_epoch == EPOCH_INITIAL {
                let from_follower = request.replica_id >= 0 || request.replica_state.replica_id >= 0;
                Kind::New { from_follower, uses_topic_ids }
            } else {
                Kind::Sessionless
            };
            return Ok(SessionFetch { topics, kind });
        }

        let id = request.session_id;
        let session = self.lock().get(id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        let (size, all) = {
            let mut session = lock(&session);
            if session.epoch != request.session_epoch {
                return Err(ErrorCode::InvalidFetchSessionEpoch);
            }
            if session.uses_topic_ids != uses_topic_ids {
                return Err(ErrorCode::FetchSessionTopicIdError);
            }
            session.update(topics, &request.forgotten_topics_data);
            session.epoch = next_epoch(session.epoch);
            (session.len(), session.topics())
        };
        let mut cache = self.lock();
        if size == 0 {
            cache.remove(id);
            return Ok(SessionFetch { topics: Vec::new(), kind: Kind::Sessionless });
        }
        if !cache.touch(id, size, now) {
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        let epoch = next_epoch(request.session_epoch);
        Ok(SessionFetch { topics: all, kind: Kind::Incremental { id, session, epoch } })
    }

    /// Makes `response` what the client needs: leaves out partitions without news, and sets the session's id, or
    /// the error if the session was used by another request meanwhile.
    ///
    /// `response` holds a partition for each that `fetch` named.
    pub fn finish(&self, fetch: SessionFetch, response: &mut FetchResponse, now: Timestamp) {
        match fetch.kind {
            Kind::Sessionless => response.session_id = NO_SESSION,
            Kind::New { from_follower, uses_topic_ids } => {
                let size = fetch.topics.iter().map(|topic| topic.partitions.len()).sum();
                let candidate = Candidate { from_follower, size };
                response.session_id = self.lock().create(candidate, now, || {
                    let mut session = Session::new(uses_topic_ids, next_epoch(EPOCH_INITIAL));
                    session.update(fetch.topics, &[]);
                    session.learn(response);
                    session
                });
            }
            Kind::Incremental { id, session, epoch } => {
                let mut session = lock(&session);
                if session.epoch == epoch {
                    session.keep_news(response);
                    response.session_id = id;
                } else {
                    // A second request of the session came before this one's answer: both can't be right.
                    *response = FetchResponse {
                        error_code: ErrorCode::InvalidFetchSessionEpoch,
                        throttle_time_ms: response.throttle_time_ms,
                        ..Default::default()
                    };
                }
            }
        }
    }

    /// How full the cache is.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.lock().stats()
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }
}

/// The state behind these locks is whole between any two statements, so a panic elsewhere doesn't spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Epochs go from 1 to the largest and begin at 1 again: 0 and -1 have meanings of their own.
fn next_epoch(epoch: i32) -> i32 {
    if epoch < 0 {
        EPOCH_FINAL
    } else if epoch == i32::MAX {
        1
    } else {
        epoch + 1
    }
}

#[cfg(test)]
mod tests;
