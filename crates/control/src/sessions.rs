//! Which brokers have been heard of lately. Soft: a new leader begins with a full session for everyone.

use std::{collections::BTreeMap, time::Duration};

use semel_metadata::ClusterImage;
use semel_model::{BrokerEpoch, BrokerId};

use crate::{config::Config, ops::heartbeat::Fence};

/// The brokers' sessions at the leader. Times are of the leader's monotonic clock.
#[derive(Clone, Debug)]
pub struct Sessions {
    timeout: Duration,
    grace: Duration,
    brokers: BTreeMap<BrokerId, Session>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    epoch: BrokerEpoch,
    last_heard: Duration,
    /// Heartbeat streams that are open: two for a moment when a broker reconnects.
    streams: u32,
    /// When the last of them broke.
    disconnected: Option<Duration>,
}

impl Sessions {
    /// No broker is known.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { timeout: config.session_timeout, grace: config.disconnect_grace, brokers: BTreeMap::new() }
    }

    /// Forgets everything but the streams that are open: what a deposed leader's sessions are worth.
    pub fn restart(&mut self, now: Duration) {
        self.brokers.retain(|_, session| session.streams > 0);
        for session in self.brokers.values_mut() {
            session.last_heard = now;
            session.disconnected = None;
        }
    }

    /// A broker registered or sent a heartbeat.
    pub fn heard(&mut self, broker: BrokerId, epoch: BrokerEpoch, now: Duration) {
        let session = self.entry(broker, epoch, now);
        if session.epoch == epoch {
            session.last_heard = session.last_heard.max(now);
        }
    }

    /// A heartbeat stream of a broker was opened.
    pub fn opened(&mut self, broker: BrokerId, epoch: BrokerEpoch, now: Duration) {
        let session = self.entry(broker, epoch, now);
        if session.epoch == epoch {
            session.streams = session.streams.saturating_add(1);
            session.disconnected = None;
        }
    }

    /// A heartbeat stream of a broker broke. Streams of an earlier life do not count.
    pub fn closed(&mut self, broker: BrokerId, epoch: BrokerEpoch, now: Duration) {
        if let Some(session) = self.brokers.get_mut(&broker)
            && session.epoch == epoch
        {
            session.streams = session.streams.saturating_sub(1);
            if session.streams == 0 {
                session.disconnected = Some(now);
            }
        }
    }

    /// Whether a broker had a heartbeat stream in this life and has none now.
    #[must_use]
    pub fn is_gone(&self, broker: BrokerId, epoch: BrokerEpoch) -> bool {
        self.brokers
            .get(&broker)
            .is_some_and(|session| session.epoch == epoch && session.disconnected.is_some())
    }

    /// The brokers to fence now. A broker that is not fenced and was never heard of gets a session from here on.
    pub fn due(&mut self, image: &ClusterImage, now: Duration) -> Vec<Fence> {
        let mut due = Vec::new();
        for broker in image.alive_brokers() {
            let session = *self.entry(broker.id, broker.epoch, now);
            let is_silent = now.saturating_sub(session.last_heard) >= self.timeout;
            // One that said it would stop has nothing to come back for.
            let grace = if broker.shutting_down { Duration::ZERO } else { self.grace };
            let is_gone = session.disconnected.is_some_and(|at| now.saturating_sub(at) >= grace);
            if is_silent || is_gone {
                due.push(Fence { broker: broker.id, epoch: broker.epoch });
            }
        }
        due
    }

    fn entry(&mut self, broker: BrokerId, epoch: BrokerEpoch, now: Duration) -> &mut Session {
        let fresh = Session { epoch, last_heard: now, streams: 0, disconnected: None };
        let session = self.brokers.entry(broker).or_insert(fresh);
        if session.epoch < epoch {
            *session = fresh;
        }
        session
    }
}

#[cfg(test)]
mod tests {
    use semel_metadata::{IncarnationId, Record, RegisterBroker};
    use semel_model::MetadataIndex;

    use super::*;

    const ONE: BrokerId = BrokerId(1);
    const LIFE: BrokerEpoch = BrokerEpoch(7);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn image(shutting_down: bool) -> ClusterImage {
        let mut image = ClusterImage::new();
        let registration = RegisterBroker {
            broker: ONE,
            incarnation: IncarnationId([1; 16]),
            kafka_host: "h".into(),
            kafka_port: 1,
            grpc_address: "h:2".into(),
            rack: None,
            directories: [].into(),
        };
        image.apply(MetadataIndex(7), &Record::RegisterBroker(registration));
        image.apply(
            MetadataIndex(8),
            &Record::BrokerFence { broker: ONE, epoch: LIFE, fenced: false, shutting_down },
        );
        image
    }

    fn is_due(sessions: &mut Sessions, image: &ClusterImage, now: u64) -> bool {
        sessions.due(image, at(now)) == [Fence { broker: ONE, epoch: LIFE }]
    }

    #[test]
    fn silence_ends_a_session() {
        let (mut sessions, image) = (Sessions::new(&Config::default()), image(false));
        assert!(!is_due(&mut sessions, &image, 100));
        assert!(!is_due(&mut sessions, &image, 9_099));
        sessions.heard(ONE, LIFE, at(9_099));
        assert!(!is_due(&mut sessions, &image, 18_098));
        sessions.heard(ONE, BrokerEpoch(6), at(18_098));
        assert!(is_due(&mut sessions, &image, 18_099));
    }

    #[test]
    fn a_broken_stream_ends_it_after_a_grace() {
        let (mut sessions, image) = (Sessions::new(&Config::default()), image(false));
        sessions.opened(ONE, LIFE, at(0));
        sessions.opened(ONE, LIFE, at(10));
        sessions.closed(ONE, LIFE, at(20));
        assert!(!sessions.is_gone(ONE, LIFE));
        assert!(!is_due(&mut sessions, &image, 1_000));
        sessions.closed(ONE, LIFE, at(1_000));
        assert!(sessions.is_gone(ONE, LIFE) && !sessions.is_gone(ONE, BrokerEpoch(8)));
        assert!(!is_due(&mut sessions, &image, 1_499));
        assert!(is_due(&mut sessions, &image, 1_500));
        sessions.opened(ONE, LIFE, at(1_501));
        assert!(!is_due(&mut sessions, &image, 1_502));
    }

    #[test]
    fn a_broker_that_stops_is_fenced_at_once() {
        let (mut sessions, image) = (Sessions::new(&Config::default()), image(true));
        sessions.opened(ONE, LIFE, at(0));
        sessions.closed(ONE, LIFE, at(5));
        assert!(is_due(&mut sessions, &image, 5));
    }

    #[test]
    fn a_new_leader_gives_everyone_a_session() {
        let (mut sessions, image) = (Sessions::new(&Config::default()), image(false));
        sessions.opened(ONE, LIFE, at(0));
        sessions.closed(ONE, LIFE, at(5));
        sessions.restart(at(20_000));
        assert!(!is_due(&mut sessions, &image, 28_999));
        assert!(is_due(&mut sessions, &image, 37_999));
    }
}
