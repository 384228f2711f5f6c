//! Accepting connections: bounded in number, never spinning on an error, and cut when the time to stop is over.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

use crate::shutdown::Watcher;

/// Binds `address` with `SO_REUSEADDR`, so that a restart doesn't wait for old connections to time out.
///
/// Errors: the address is in use, isn't one of this host, or doesn't resolve; the message names it.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|cause| io::Error::new(cause.kind(), format!("cannot listen on {address}: {cause}")))
}

/// How long to wait after accept failed `failures` times in a row (≥ 1): out of file descriptors (EMFILE, ENFILE)
/// stays true until something closes, and accept reports it again at once.
#[must_use]
pub fn accept_backoff(failures: u32) -> Duration {
    Duration::from_millis(5 << failures.saturating_sub(1).min(7))
}

/// Whether an error of accept is the fault of that one connection (it is gone already) and not of the listener.
#[must_use]
pub fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Accepts connections of one listener, at most a given number at a time: further ones wait in the kernel's queue.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    cut: CancellationToken,
}

impl Acceptor {
    /// `cut` ends all its connections, whatever they are doing.
    #[must_use]
    pub fn new(listener: TcpListener, connections_max: usize, cut: CancellationToken) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS))),
            cut,
        }
    }

    /// The next connection. Never fails: an error is logged and waited out.
    pub async fn next(&mut self) -> Connection {
        // The semaphore is never closed, so acquiring can't fail; a `None` permit would merely not be counted.
        let permit = self.permits.clone().acquire_owned().await.ok();
        let mut failures = 0_u32;
        loop {
            let error = match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Without it, Nagle's algorithm and delayed acknowledgements add 40 ms to small answers.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
                    }
                    return Connection { stream, peer, cut: Watcher::new(self.cut.clone()), _permit: permit };
                }
                Err(error) => error,
            };
            if is_connection_error(&error) {
                continue;
            }
            failures = failures.saturating_add(1);
            if failures == 1 {
                tracing::warn!(%error, "cannot accept connections");
            }
            tokio::time::sleep(accept_backoff(failures)).await;
        }
    }

    /// The connections as an endless stream, for tonic.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        futures::stream::unfold(self, |mut acceptor| async {
            let connection = acceptor.next().await;
            Some((Ok(connection), acceptor))
        })
    }
}

impl axum::serve::Listener for Acceptor {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let connection = self.next().await;
        let peer = connection.peer;
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// An accepted connection, which ends when its acceptor's `cut` is cancelled.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    cut: Watcher,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.poll(cx) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "server is stopping"));
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = tonic::transport::server::TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}
