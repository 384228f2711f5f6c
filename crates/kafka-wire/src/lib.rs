//! Semel's own bounded codec of the Kafka protocol: every request and response that a Kafka 4.x broker serves
//! to clients, as plain structs, with the table of API versions and the table of error codes.
//!
//! It must never do I/O, decide anything about a request, look into record batches, or trust a length.
//!
//! Invariants, whatever the bytes:
//! - Nothing panics, and nothing recurses deeper than a schema is nested.
//! - A decode allocates at most a small multiple of the frame: an array's length is checked against what the
//!   rest of the frame can hold, and the memory of all arrays together against the reader's budget
//!   ([`Reader::new`]). Strings and bytes are slices of the frame, not copies.
//! - A string is UTF-8, null stands only where the version allows it, a body fills its frame exactly, and
//!   unknown tagged fields are skipped.
//! - What [`Response::encode`] writes, [`Response::decode`] reads back equal; the same for requests.
//!
//! Start with [`decode_frame`] and [`encode_response`] (one frame in, one frame out), then [`messages`] (the
//! modules made from `schema/`), [`Frame`] (how record batches stay in their files until `sendfile`) and
//! [`ErrorCode`].

mod api_key;
mod consumer_protocol;
mod error_code;
mod frame;
mod header;
mod kstring;
pub mod messages;
mod read;
#[cfg(any(test, feature = "test-values"))]
pub mod testing;
mod write;

#[cfg(test)]
mod oracle_tests;

pub use api_key::{ApiKey, ApiSupport, flexible, support, versions};
pub use error_code::ErrorCode;
pub use frame::{
    PRODUCE_ADVERTISED_MIN, decode_any, decode_frame, decode_response, encode_request, encode_response,
    encode_unsupported_api_versions,
};
pub use header::{RequestHeader, ResponseHeader};
pub use kstring::{KString, NotUtf8};
pub use messages::{
    ApiRequest, ConsumerProtocolAssignment, ConsumerProtocolSubscription, Message, Request, Response,
    SUPPORTED,
};
pub use read::{DecodeError, Reader};
pub use write::{Chunk, EncodeError, External, Frame, Records, Writer};
