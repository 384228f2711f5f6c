//! One connection: a loop over reading, asking the backend, collecting answers in order, and sending.

use std::{
    collections::VecDeque,
    future::Future as _,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use semel_kafka_wire::{
    ApiKey, DecodeError, EncodeError, Frame, Request, RequestHeader, decode_frame, encode_response,
    encode_unsupported_api_versions,
};
use semel_service::shutdown::Watcher;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, Sleep},
};
use tokio_util::{io::poll_read_buf, sync::CancellationToken};
use tracing::Span;

use crate::{
    api_versions,
    backend::{Answer, Backend, ClientSoftware, ConnectionInfo, Later, Reply, RequestContext},
    gateway::Shared,
    inbound::{self, BadLength, Inbound},
    outbound::{BadAnswer, Outbound, Sent},
    pool::Share,
    responses,
};

/// How much one poll of a connection may do before others get their turn: rounds of the loop, and bytes sent.
const ROUNDS_MAX: usize = 16;
const SEND_BYTES_MAX: usize = 4 << 20;
/// Bytes of an unfinished frame that count as a sign of life. A slow sender who lives on single bytes is idle.
const SIGN_OF_LIFE_BYTES: usize = 64 << 10;
/// How long a client may take to close after the server's orderly end.
const LINGER: Duration = Duration::from_millis(500);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("closed by client")]
    ByClient,
    #[error("idle for too long")]
    Idle,
    #[error(transparent)]
    Length(#[from] BadLength),
    #[error("malformed {what}: {cause}")]
    Malformed { what: &'static str, cause: DecodeError },
    #[error("{key} version {version} is not served")]
    NotServed { key: ApiKey, version: i16 },
    #[error("{0}")]
    Refused(String),
    #[error("I/O error")]
    Io(#[source] io::Error),
    #[error("cannot encode answer to {key} version {version}")]
    Encode { key: ApiKey, version: i16, cause: EncodeError },
    #[error("answer to {key} is inconsistent")]
    BadAnswer { key: ApiKey, cause: BadAnswer },
    #[error("server is stopping")]
    Stopped,
    #[error("server has stopped")]
    Cut,
}

impl Closed {
    /// For the metric.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::ByClient => "client",
            Self::Idle => "idle",
            Self::Length(_) | Self::Malformed { .. } => "malformed",
            Self::NotServed { .. } => "not_served",
            Self::Refused(_) => "refused",
            Self::Io(_) => "io",
            Self::Encode { .. } | Self::BadAnswer { .. } => "internal",
            Self::Stopped | Self::Cut => "stopped",
        }
    }

    /// The one line.
    pub(crate) fn log(&self, info: &ConnectionInfo) {
        let (connection, peer, listener) = (info.id, info.peer, &*info.listener);
        match self {
            Self::ByClient | Self::Idle | Self::Stopped | Self::Cut => {
                tracing::debug!(connection, %peer, listener, "connection ended: {self}");
            }
            Self::Length(_) | Self::Malformed { .. } | Self::NotServed { .. } | Self::Refused(_) => {
                tracing::info!(connection, %peer, listener, "connection closed: {self}");
            }
            Self::Io(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                // Not the peer's end, which is no error of writing: a file was shorter than its range.
                tracing::error!(connection, %peer, listener, %cause, "connection closed, answer cannot be finished");
            }
            Self::Io(cause) => tracing::info!(connection, %peer, listener, %cause, "connection lost"),
            Self::Encode { cause, .. } => {
                tracing::error!(connection, %peer, listener, %cause, "connection closed: {self}");
            }
            Self::BadAnswer { cause, .. } => {
                tracing::error!(connection, %peer, listener, %cause, "connection closed: {self}");
            }
        }
    }
}

/// A request between its frame and its answer.
struct Slot<R> {
    state: State<R>,
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    frame_bytes: usize,
    received: Instant,
    span: Span,
}

enum State<R> {
    Later(Later<R>),
    Ready(Answer<R>),
    /// Encoded already: the one answer that is not in its request's version.
    Frame(Frame),
    Silent,
    Close(String),
}

impl<R> From<Reply<R>> for State<R> {
    fn from(reply: Reply<R>) -> Self {
        match reply {
            Reply::Now(answer) => Self::Ready(answer),
            Reply::Later(later) => Self::Later(later),
            Reply::Silent => Self::Silent,
            Reply::Close { reason } => Self::Close(reason),
        }
    }
}

pub(crate) struct Connection<B: Backend> {
    shared: Arc<Shared<B>>,
    info: Arc<ConnectionInfo>,
    software: Option<Arc<ClientSoftware>>,
    stream: TcpStream,
    inbound: Inbound,
    /// Requests without a sent answer, in the order they came.
    slots: VecDeque<Slot<B::Range>>,
    outbound: Outbound<B::Range>,
    /// Of the bytes in `slots` and of the unfinished frame.
    share: Share,
    slot_bytes: usize,
    buffer_charge: usize,
    end_of_stream: bool,
    stopping: bool,
    /// Set once no further answer may leave; what is queued still does.
    closing: Option<Closed>,
    stop: Watcher,
    cut: Watcher,
    idle: Pin<Box<Sleep>>,
    last_active: Instant,
    bytes_since_active: usize,
}

impl<B: Backend> Connection<B> {
    pub(crate) fn new(
        shared: Arc<Shared<B>>,
        stream: TcpStream,
        info: Arc<ConnectionInfo>,
        stop: CancellationToken,
        cut: CancellationToken,
    ) -> Self {
        let now = Instant::now();
        Self {
            info,
            software: None,
            stream,
            inbound: Inbound::new(shared.config.frame_bytes_max),
            slots: VecDeque::new(),
            outbound: Outbound::new(),
            share: Share::new(shared.pool.clone()),
            slot_bytes: 0,
            buffer_charge: 0,
            end_of_stream: false,
            stopping: false,
            closing: None,
            stop: Watcher::new(stop),
            cut: Watcher::new(cut),
            idle: Box::pin(tokio::time::sleep_until(now + shared.config.idle_max)),
            last_active: now,
            bytes_since_active: 0,
            shared,
        }
    }

    /// Does what can be done now; ready when the connection is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        match self.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(closed) => Poll::Ready(closed),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Closed> {
        if self.cut.poll(cx) {
            return Err(Closed::Cut);
        }
        self.stopping = self.stopping || self.stop.poll(cx);
        let mut sent = Sent::default();
        for _ in 0..ROUNDS_MAX {
            let mut moved = self.read(cx)?;
            moved |= self.dispatch()?;
            self.poll_slots(cx);
            moved |= self.collect()?;
            moved |= self.send(cx, &mut sent)?;
            if !moved {
                self.inbound.rest();
                self.settle_buffer();
                return self.rest(cx);
            }
            if sent.bytes >= SEND_BYTES_MAX {
                break;
            }
        }
        // More to do, but others first.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Reads once, if there is room for another request.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        if self.end_of_stream || self.stopping || self.closing.is_some() || !self.has_room() {
            return Ok(false);
        }
        // An idle connection gets no buffer before there is something to read.
        match self.stream.poll_read_ready(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(result) => result.map_err(Closed::Io)?,
        }
        if !self.make_buffer(cx) {
            return Ok(false);
        }
        let buffer = self.inbound.buffer();
        let room = buffer.capacity() - buffer.len();
        let count = match poll_read_buf(Pin::new(&mut self.stream), cx, buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(result) => result.map_err(Closed::Io)?,
        };
        if count == 0 {
            self.end_of_stream = true;
            return Ok(true);
        }
        self.inbound.after_read(count, room);
        self.bytes_since_active += count;
        if self.bytes_since_active >= SIGN_OF_LIFE_BYTES {
            self.active(Instant::now());
        }
        Ok(true)
    }

    /// Makes room for a read, within the bound of all connections. False: not now.
    fn make_buffer(&mut self, cx: &mut Context<'_>) -> bool {
        let needed = self.inbound.needed();
        let more = needed.map_or(0, inbound::charge).saturating_sub(self.buffer_charge);
        // A buffer that is paid for is filled, whatever the others do.
        let paid = more == 0 && self.buffer_charge > 0;
        if !paid && !self.share.ask(more, self.inbound.is_partial(), cx) {
            return false;
        }
        self.buffer_charge += more;
        if let Some(capacity) = needed {
            self.inbound.grow(capacity);
        }
        true
    }

    /// Hands whole frames to the backend.
    fn dispatch(&mut self) -> Result<bool, Closed> {
        let mut moved = false;
        let mut now = None;
        while !self.stopping && self.closing.is_none() && self.has_room() {
            let frame = match self.inbound.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => frame,
                Err(bad) => {
                    self.close(bad.into())?;
                    break;
                }
            };
            moved = true;
            let now = *now.get_or_insert_with(Instant::now);
            self.active(now);
            self.share.return_pass();
            self.settle_buffer();
            if let Err(closed) = self.begin(frame, now) {
                self.close(closed)?;
            }
        }
        Ok(moved)
    }

    fn begin(&mut self, frame: Bytes, now: Instant) -> Result<(), Closed> {
        let frame_bytes = frame.len();
        let (header, mut reader) =
            decode_frame(frame).map_err(|cause| Closed::Malformed { what: "request header", cause })?;
        let RequestHeader { key, version, correlation_id, client_id } = header;
        let metrics = self.shared.metrics.api(key);
        metrics.requests.inc();
        metrics.request_bytes.inc_by(frame_bytes as u64);

        let span = tracing::debug_span!(
            "kafka",
            otel.name = key.name(),
            otel.kind = "server",
            api = key.name(),
            version,
            correlation_id,
            connection = self.info.id,
        );
        let state =
            if self.shared.serves(key, version) {
                let request = Request::decode(key, version, &mut reader)
                    .map_err(|cause| Closed::Malformed { what: key.name(), cause })?;
                let _entered = span.enter();
                if let Request::ApiVersions(request) = request {
                    let node = self.shared.backend.node();
                    let (response, software) =
                        api_versions::answer(&request, version, &self.shared.apis, &node);
                    if let Some(software) = software {
                        self.software = Some(Arc::new(software));
                    }
                    State::Ready(Answer::new(response))
                } else {
                    let context = RequestContext {
                        connection: self.info.clone(),
                        software: self.software.clone(),
                        client_id,
                        key,
                        version,
                        correlation_id,
                        received: now,
                    };
                    self.shared.backend.call(&context, request).into()
                }
            } else if key == ApiKey::ApiVersions {
                let frame = encode_unsupported_api_versions(correlation_id)
                    .map_err(|cause| Closed::Encode { key, version, cause })?;
                State::Frame(frame)
            } else {
                match responses::unsupported(key, version) {
                    Some(response) => State::Ready(Answer::new(response)),
                    None => return Err(Closed::NotServed { key, version }),
                }
            };
        self.share.take(frame_bytes);
        self.slot_bytes += frame_bytes;
        self.shared.metrics.in_flight.inc();
        self.slots.push_back(Slot { state, key, version, correlation_id, frame_bytes, received: now, span });
        Ok(())
    }

    /// Polls what waits. All of it: there are few, and a poll without news costs less than a waker for each.
    fn poll_slots(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.slots {
            while let State::Later(later) = &mut slot.state {
                let _entered = slot.span.enter();
                match later.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(reply) => slot.state = reply.into(),
                }
            }
        }
    }

    /// Moves finished answers to the sending side, in order.
    fn collect(&mut self) -> Result<bool, Closed> {
        let mut moved = false;
        let mut now = None;
        while self.slots.front().is_some_and(|slot| !matches!(slot.state, State::Later(_)))
            && let Some(slot) = self.slots.pop_front()
        {
            moved = true;
            let now = *now.get_or_insert_with(Instant::now);
            self.shared.metrics.in_flight.dec();
            self.share.give(slot.frame_bytes);
            self.slot_bytes -= slot.frame_bytes;
            let Slot { state, key, version, correlation_id, received, .. } = slot;
            let metrics = self.shared.metrics.api(key);
            let (frame, ranges) = match state {
                State::Ready(answer) => {
                    if let Some(error) = responses::first_error(&answer.response) {
                        self.shared.metrics.error(key, error);
                    }
                    let frame = encode_response(correlation_id, version, &answer.response)
                        .map_err(|cause| Closed::Encode { key, version, cause })?;
                    (Some(frame), answer.ranges)
                }
                State::Frame(frame) => (Some(frame), Vec::new()),
                State::Silent | State::Later(_) => (None, Vec::new()),
                State::Close(reason) => {
                    // Whatever comes behind it has no one to be told to.
                    self.drop_slots();
                    self.close(Closed::Refused(reason))?;
                    break;
                }
            };
            metrics.seconds.observe((now - received).as_secs_f64());
            if let Some(frame) = frame {
                metrics.response_bytes.inc_by(frame.wire_len() as u64);
                self.outbound.push(frame, ranges).map_err(|cause| Closed::BadAnswer { key, cause })?;
            }
        }
        Ok(moved)
    }

    fn send(&mut self, cx: &mut Context<'_>, sent: &mut Sent) -> Result<bool, Closed> {
        if self.outbound.is_empty() {
            return Ok(false);
        }
        let (before, frames) = (*sent, self.outbound.frames());
        let result = self.outbound.poll_send(&mut self.stream, cx, SEND_BYTES_MAX, sent);
        let (bytes, by_sendfile) = (sent.bytes - before.bytes, sent.sendfile - before.sendfile);
        if bytes > 0 {
            self.shared.metrics.sent_bytes.inc_by(bytes as u64);
            self.shared.metrics.sendfile_bytes.inc_by(by_sendfile as u64);
            self.active(Instant::now());
        }
        if let Poll::Ready(result) = result {
            result.map_err(Closed::Io)?;
        }
        Ok(bytes > 0 || self.outbound.frames() < frames)
    }

    /// Says that no more will be sent, and reads what the client still sends until it has seen that: closing a socket
    /// with unread bytes resets it, and the reset can overtake the answers before it.
    pub(crate) async fn linger(&mut self) {
        let farewell = async {
            self.stream.shutdown().await?;
            let mut scratch = [0; 4096];
            while self.stream.read(&mut scratch).await? > 0 {}
            io::Result::Ok(())
        };
        // A client that does neither reads nor closes has had its time.
        let _ = tokio::time::timeout(LINGER, farewell).await;
    }

    /// Nothing moved: either the connection is over, or it waits.
    fn rest(&mut self, cx: &mut Context<'_>) -> Result<(), Closed> {
        let sent_all = self.outbound.is_empty();
        if sent_all && self.slots.is_empty() {
            if let Some(closed) = self.closing.take() {
                return Err(closed);
            }
            if self.stopping {
                return Err(Closed::Stopped);
            }
        }
        if sent_all && self.end_of_stream {
            // Nobody reads what would still come.
            return Err(self.closing.take().unwrap_or(Closed::ByClient));
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            // Waiting for us is not idling: for an answer, or for a turn to be read.
            if (!self.slots.is_empty() && sent_all) || self.share.is_waiting() {
                self.last_active = now;
            }
            let deadline = self.last_active + self.shared.config.idle_max;
            if deadline <= now {
                return Err(Closed::Idle);
            }
            self.idle.as_mut().reset(deadline);
        }
        Ok(())
    }

    /// Ends the connection, at once or when the answers before this are sent.
    fn close(&mut self, closed: Closed) -> Result<(), Closed> {
        if self.slots.is_empty() && self.outbound.is_empty() {
            return Err(closed);
        }
        self.closing.get_or_insert(closed);
        Ok(())
    }

    fn drop_slots(&mut self) {
        for slot in self.slots.drain(..) {
            self.shared.metrics.in_flight.dec();
            self.share.give(slot.frame_bytes);
        }
        self.slot_bytes = 0;
    }

    fn has_room(&self) -> bool {
        let config = &self.shared.config;
        self.slots.len() + self.outbound.frames() < config.requests_per_connection_max
            && self.slot_bytes < config.request_bytes_per_connection_max
            && self.outbound.memory() < config.answer_bytes_per_connection_max
    }

    /// Gives back what a buffer that is gone was charged.
    fn settle_buffer(&mut self) {
        let actual = self.inbound.charge();
        if actual < self.buffer_charge {
            self.share.give(self.buffer_charge - actual);
            self.buffer_charge = actual;
        }
    }

    fn active(&mut self, now: Instant) {
        self.last_active = now;
        self.bytes_since_active = 0;
    }
}

impl<B: Backend> Drop for Connection<B> {
    fn drop(&mut self) {
        self.drop_slots();
    }
}
