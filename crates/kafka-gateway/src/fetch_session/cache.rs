//! Which sessions there are, and which must go when there are too many.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use semel_model::Timestamp;

use super::{NO_SESSION, SessionConfig, SessionStats, session::Session};

/// A session that wants in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) from_follower: bool,
    /// Its partitions.
    pub(super) size: usize,
}

/// What a session is worth, least first: a follower's more than a consumer's, then the larger, then the newer id (so
/// that no two are equal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worth {
    from_follower: bool,
    size: usize,
    id: i32,
}

#[derive(Debug)]
struct Entry {
    session: Arc<Mutex<Session>>,
    from_follower: bool,
    size: usize,
    created: Timestamp,
    last_used: Timestamp,
}

impl Entry {
    fn worth(&self, id: i32) -> Worth {
        Worth { from_follower: self.from_follower, size: self.size, id }
    }
}

#[derive(Debug)]
pub(super) struct Cache {
    config: SessionConfig,
    sessions: BTreeMap<i32, Entry>,
    by_use: BTreeSet<(Timestamp, i32)>,
    /// Those that anyone of greater worth may replace: sessions older than the eviction time.
    replaceable: BTreeSet<Worth>,
    /// Those that a follower may replace: the above, and every consumer's.
    replaceable_by_follower: BTreeSet<Worth>,
    partitions: usize,
    evictions: u64,
    random: u64,
}

impl Cache {
    pub(super) fn new(config: SessionConfig, seed: u64) -> Self {
        Self {
            config,
            sessions: BTreeMap::new(),
            by_use: BTreeSet::new(),
            replaceable: BTreeSet::new(),
            replaceable_by_follower: BTreeSet::new(),
            partitions: 0,
            evictions: 0,
            random: seed,
        }
    }

    pub(super) fn get(&self, id: i32) -> Option<Arc<Mutex<Session>>> {
        self.sessions.get(&id).map(|entry| entry.session.clone())
    }

    pub(super) fn remove(&mut self, id: i32) {
        if let Some(entry) = self.sessions.remove(&id) {
            self.unlist(id, &entry);
            self.partitions -= entry.size;
        }
    }

    /// Notes that a session was used and how large it is now. False: it is gone, or had to go.
    pub(super) fn touch(&mut self, id: i32, size: usize, now: Timestamp) -> bool {
        let Some(mut entry) = self.sessions.remove(&id) else { return false };
        self.unlist(id, &entry);
        self.partitions -= entry.size;
        if self.partitions.saturating_add(size) > self.config.partitions_max {
            return false;
        }
        entry.size = size;
        entry.last_used = now;
        self.list(id, entry, now);
        true
    }

    /// Makes a session if there is room, or one that may be replaced; gives its id, or 0.
    pub(super) fn create(
        &mut self,
        candidate: Candidate,
        now: Timestamp,
        make: impl FnOnce() -> Session,
    ) -> i32 {
        // One without partitions would end with its next request.
        if candidate.size == 0 || self.config.slots == 0 {
            return NO_SESSION;
        }
        if self.sessions.len() >= self.config.slots && !self.evict(candidate, now) {
            return NO_SESSION;
        }
        if self.partitions.saturating_add(candidate.size) > self.config.partitions_max {
            return NO_SESSION;
        }
        let session = make();
        // A request may name a partition twice.
        let size = session.len();
        let id = self.new_id();
        let entry = Entry {
            session: Arc::new(Mutex::new(session)),
            from_follower: candidate.from_follower,
            size,
            created: now,
            last_used: now,
        };
        self.list(id, entry, now);
        id
    }

    pub(super) fn stats(&self) -> SessionStats {
        SessionStats { sessions: self.sessions.len(), partitions: self.partitions, evictions: self.evictions }
    }

    /// Removes a session that was not used for the eviction time, or else the one of least worth, if the candidate is
    /// worth more. Source: Kafka's `FetchSessionCache`.
    fn evict(&mut self, candidate: Candidate, now: Timestamp) -> bool {
        let Some(&(last_used, oldest)) = self.by_use.first() else { return false };
        let victim = if now.since(last_used) > self.config.eviction {
            oldest
        } else {
            let among =
                if candidate.from_follower { &self.replaceable_by_follower } else { &self.replaceable };
            let worth = Worth { from_follower: candidate.from_follower, size: candidate.size, id: 0 };
            match among.first() {
                Some(least) if worth >= *least => least.id,
                _ => return false,
            }
        };
        self.remove(victim);
        self.evictions += 1;
        true
    }

    fn list(&mut self, id: i32, entry: Entry, now: Timestamp) {
        let worth = entry.worth(id);
        let is_old = now.since(entry.created) > self.config.eviction;
        if is_old || !entry.from_follower {
            self.replaceable_by_follower.insert(worth);
        }
        if is_old {
            self.replaceable.insert(worth);
        }
        self.by_use.insert((entry.last_used, id));
        self.partitions += entry.size;
        self.sessions.insert(id, entry);
    }

    fn unlist(&mut self, id: i32, entry: &Entry) {
        let worth = entry.worth(id);
        self.replaceable.remove(&worth);
        self.replaceable_by_follower.remove(&worth);
        self.by_use.remove(&(entry.last_used, id));
    }

    /// A positive id that no session has.
    fn new_id(&mut self) -> i32 {
        loop {
            // SplitMix64 (Steele, Lea, Flood 2014).
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let id = ((z ^ (z >> 31)) >> 33) as i32;
            if id != NO_SESSION && !self.sessions.contains_key(&id) {
                return id;
            }
        }
    }
}
