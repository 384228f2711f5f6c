//! gRPC servers and client channels, set up alike in every process.

mod client;
mod observe;
mod server;

pub use client::{Channel, ChannelConfig, ChannelError, channel};
pub use server::{GrpcError, Server, ServerConfig};

/// The most one message may hold, in bytes, unless a service says otherwise: pass it to a generated service's
/// `max_decoding_message_size` (tonic's own default is 4 MiB).
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// HTTP/2 flow control, in bytes. Measured best for 1 MiB messages from server to client; the smaller defaults leave
/// a stream waiting for window updates.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const FRAME_BYTES: u32 = 256 << 10;
