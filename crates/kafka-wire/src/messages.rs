//! The messages, one module for each API, generated from `schema/` at build time.
//!
//! All share one shape: public fields, `Default` with the protocol's defaults, `decode(&mut Reader, version)`
//! and `encode(&self, &mut Writer, version)`. Fill a message with `..Default::default()`, so that a field added
//! by a later version does not break the caller.

// The generated text follows the schema, not the shape a person would choose: versions compare even when they
// leave one case, `flex` is bound when no field asks for it, and the largest body decides an enum's size (a body
// is moved once, from decoder to handler, so boxing every one would cost more than it saves).
#![allow(
    unused_variables,
    clippy::derivable_impls,
    clippy::large_enum_variant,
    clippy::manual_range_contains
)]
#![allow(clippy::absurd_extreme_comparisons, clippy::nonminimal_bool)]

use crate::api_key::{ApiKey, ApiSupport};
use crate::read::{DecodeError, Reader};
use crate::write::{EncodeError, Writer};

/// A message of the protocol, for code that is generic over them.
pub trait Message: Sized {
    /// Kafka's name of the message, such as `FetchRequest`.
    const NAME: &'static str;

    /// Reads a body of version `v`; leaves what follows it in `r`.
    ///
    /// Errors: [`DecodeError`].
    fn decode(r: &mut Reader, v: i16) -> Result<Self, DecodeError>;

    /// Writes the body in version `v`.
    ///
    /// Errors: [`EncodeError`].
    fn encode(&self, w: &mut Writer, v: i16) -> Result<(), EncodeError>;
}

/// A request, tied to its API and its response, for clients that are generic over the call.
pub trait ApiRequest: Message + Into<Request> {
    /// The API.
    const KEY: ApiKey;
    /// What answers it.
    type Response: Message;
}

/// What every generated module uses.
mod prelude {
    #![allow(unused_imports)]
    pub(super) use bytes::Bytes;
    pub(super) use semel_model::TopicId;
    pub(super) use uuid::Uuid;

    pub(super) use crate::error_code::ErrorCode;
    pub(super) use crate::kstring::KString;
    pub(super) use crate::read::{DecodeError, Reader};
    pub(super) use crate::write::{EncodeError, Records, Writer};

    pub(super) fn check_decode(message: &'static str, v: i16, min: i16, max: i16) -> Result<(), DecodeError> {
        if v < min || v > max {
            return Err(DecodeError::UnsupportedVersion { message, version: v });
        }
        Ok(())
    }

    pub(super) fn check_encode(message: &'static str, v: i16, min: i16, max: i16) -> Result<(), EncodeError> {
        if v < min || v > max {
            return Err(EncodeError::UnsupportedVersion { message, version: v });
        }
        Ok(())
    }
}

include!(concat!(env!("OUT_DIR"), "/messages.rs"));
