//! Bounds how many bytes of produce requests are in memory, before they are: a message is let in when there is room
//! for all of it, and until then HTTP/2's windows hold the client back.
//!
//! ```text
//!  gRPC body:  flag  length (u32)  message  │ flag  length  message  │ …
//!              └─ held back until ─┘        └ the next only when this one is through
//!                 `length` bytes are free
//! ```

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use parking_lot::Mutex;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};

/// How long a message may take to arrive once it is let in: it keeps its room from others.
const ARRIVE_WITHIN: Duration = Duration::from_secs(30);
/// Flag and length.
const PREFIX_BYTES: usize = 5;
/// The calls whose messages are counted. All others are small.
const COUNTED: [&str; 2] = ["/semel.v1.LogService/Produce", "/semel.v1.LogService/ProduceStream"];

/// A service whose produce calls are let in message by message.
#[derive(Clone)]
pub(super) struct Admission<S> {
    inner: S,
    room: Arc<Semaphore>,
    message_bytes_max: usize,
}

impl<S> Admission<S> {
    /// `room` has a permit for each byte; messages over `message_bytes_max`, which `inner` refuses by their length,
    /// are not counted. It must not be less.
    pub(super) fn new(inner: S, room: Arc<Semaphore>, message_bytes_max: usize) -> Self {
        Self { inner, room, message_bytes_max }
    }
}

impl<S: NamedService> NamedService for Admission<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Admission<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if COUNTED.contains(&request.uri().path()) {
            let tickets = Tickets::default();
            request.extensions_mut().insert(tickets.clone());
            let (room, message_bytes_max) = (self.room.clone(), self.message_bytes_max);
            request = request.map(|body| Body::new(Admitted::new(body, room, message_bytes_max, tickets)));
        }
        self.inner.call(request)
    }
}

/// The room that messages of one call take, in their order. Whoever takes a message takes its ticket, and drops it
/// with the message.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets(Arc<Mutex<VecDeque<OwnedSemaphorePermit>>>);

impl Tickets {
    /// Of the oldest message whose ticket was not taken yet.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.lock().pop_front()
    }
}

/// What a body passes on besides bytes; `None` is its end.
type Passed = Option<Result<Frame<Bytes>, Status>>;

type Acquire = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Where in its framing a body stands.
enum State {
    /// So many bytes of a prefix are there.
    Prefix([u8; PREFIX_BYTES], usize),
    /// The prefix is whole, and waits for room.
    Waiting([u8; PREFIX_BYTES], Acquire),
    /// So many bytes of a message are to come.
    Message(usize),
}

/// A request's body that passes on only what has been let in.
struct Admitted {
    body: Body,
    room: Arc<Semaphore>,
    message_bytes_max: usize,
    tickets: Tickets,
    state: State,
    /// Came from `body` and was not passed on yet.
    rest: Bytes,
    /// Set while a message that is let in is waited for.
    late: Option<Pin<Box<Sleep>>>,
}

impl Admitted {
    fn new(body: Body, room: Arc<Semaphore>, message_bytes_max: usize, tickets: Tickets) -> Self {
        let state = State::Prefix([0; PREFIX_BYTES], 0);
        Self { body, room, message_bytes_max, tickets, state, rest: Bytes::new(), late: None }
    }

    /// More bytes into `rest`; otherwise what is to be passed on: the end, trailers, an error.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Passed>> {
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Poll::Ready(Ok(()))
                }
                Err(other) => Poll::Ready(Err(Some(Ok(other)))),
            },
            Some(Err(status)) => Poll::Ready(Err(Some(Err(status)))),
            None => Poll::Ready(Err(None)),
        }
    }
}

impl http_body::Body for Admitted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Prefix(prefix, PREFIX_BYTES) => {
                    let [_, length @ ..] = *prefix;
                    let length = u32::from_be_bytes(length);
                    let prefix = *prefix;
                    let size = usize::try_from(length).unwrap_or(usize::MAX);
                    if size > this.message_bytes_max {
                        this.state = State::Message(size);
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&prefix)))));
                    }
                    this.state =
                        State::Waiting(prefix, Box::pin(this.room.clone().acquire_many_owned(length.max(1))));
                }
                State::Prefix(prefix, filled) => {
                    if !this.rest.is_empty() {
                        let piece = this.rest.split_to(this.rest.len().min(PREFIX_BYTES - *filled));
                        prefix[*filled..*filled + piece.len()].copy_from_slice(&piece);
                        *filled += piece.len();
                    } else if let Err(other) = ready!(this.fill(cx)) {
                        return Poll::Ready(other);
                    }
                }
                State::Waiting(prefix, acquire) => {
                    let Ok(ticket) = ready!(acquire.as_mut().poll(cx)) else {
                        return Poll::Ready(Some(Err(Status::unavailable("the broker is stopping"))));
                    };
                    let prefix = *prefix;
                    this.tickets.0.lock().push_back(ticket);
                    let [_, length @ ..] = prefix;
                    this.state =
                        State::Message(usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX));
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&prefix)))));
                }
                State::Message(0) => {
                    this.late = None;
                    this.state = State::Prefix([0; PREFIX_BYTES], 0);
                }
                State::Message(left) => {
                    if !this.rest.is_empty() {
                        let piece = this.rest.split_to(this.rest.len().min(*left));
                        *left -= piece.len();
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    match this.fill(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(other)) => return Poll::Ready(other),
                        Poll::Pending => {
                            let late =
                                this.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(ARRIVE_WITHIN)));
                            ready!(late.as_mut().poll(cx));
                            let text = format!("the request did not arrive within {ARRIVE_WITHIN:?}");
                            return Poll::Ready(Some(Err(Status::deadline_exceeded(text))));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// A body of the given chunks, with what it passes on at once.
    struct Script {
        body: Admitted,
        tickets: Tickets,
        seen: Vec<u8>,
    }

    impl Script {
        fn new(room: &Arc<Semaphore>, chunks: Vec<Vec<u8>>, bytes_max: usize) -> Self {
            let (sender, receiver) = tokio::sync::mpsc::channel(chunks.len() + 1);
            for chunk in chunks {
                sender.try_send(Ok::<_, Status>(Frame::data(Bytes::from(chunk)))).unwrap();
            }
            let tickets = Tickets::default();
            let body = Body::new(Chunks(ReceiverStream::new(receiver)));
            Self {
                body: Admitted::new(body, room.clone(), bytes_max, tickets.clone()),
                tickets,
                seen: Vec::new(),
            }
        }

        /// Polls until it ends or waits; whether it ended.
        fn run(&mut self) -> bool {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            loop {
                match Pin::new(&mut self.body).poll_frame(&mut cx) {
                    Poll::Pending => return false,
                    Poll::Ready(None) => return true,
                    Poll::Ready(Some(frame)) => {
                        self.seen.extend_from_slice(&frame.unwrap().into_data().unwrap())
                    }
                }
            }
        }
    }

    struct Chunks(ReceiverStream<Result<Frame<Bytes>, Status>>);

    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            tokio_stream::Stream::poll_next(Pin::new(&mut self.0), cx)
        }
    }

    fn message(size: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
        bytes.extend((0..size).map(|at| at as u8));
        bytes
    }

    #[test]
    fn a_message_waits_for_room_and_gives_it_back_with_its_ticket() {
        let room = Arc::new(Semaphore::new(100));
        let (first, second) = (message(60), message(70));
        let mut script = Script::new(&room, vec![[first.clone(), second.clone()].concat()], 100);
        assert!(!script.run());
        // What is free is kept for who waits: a large message is not passed by small ones for ever.
        assert_eq!((&script.seen, room.available_permits()), (&first, 0));
        drop(script.tickets.take());
        assert!(script.run());
        assert_eq!((&script.seen, room.available_permits()), (&[first, second].concat(), 30));
        drop(script);
        assert_eq!(room.available_permits(), 100);
    }

    #[test]
    fn nothing_is_lost_wherever_the_chunks_are_cut() {
        let whole = [message(0), message(3), message(300), message(1)].concat();
        for size in [1, 2, 3, 7, 64, whole.len()] {
            let room = Arc::new(Semaphore::new(1000));
            let mut script = Script::new(&room, whole.chunks(size).map(<[u8]>::to_vec).collect(), 1000);
            assert!(script.run());
            assert_eq!(script.seen, whole, "cut at {size}");
            assert_eq!(room.available_permits(), 1000 - 305);
        }
    }

    #[test]
    fn what_the_service_refuses_by_its_length_takes_no_room() {
        let room = Arc::new(Semaphore::new(100));
        let mut script = Script::new(&room, vec![message(101)], 100);
        assert!(script.run());
        assert_eq!(room.available_permits(), 100);
        assert!(script.tickets.take().is_none());
    }
}
