//! What stands before a body.

use crate::api_key::{ApiKey, flexible};
use crate::kstring::KString;
use crate::read::{DecodeError, Reader};
use crate::write::{EncodeError, Writer};

/// The header of a request, versions 1 and 2. (Version 0 belonged to an API that Kafka 4.0 removed.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API.
    pub key: ApiKey,
    /// The version of the body.
    pub version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
    /// What the client calls itself, for logs and quotas.
    pub client_id: Option<KString>,
}

impl RequestHeader {
    /// Reads the header. A version without a schema is no error here: the caller must be able to answer it.
    ///
    /// Errors: [`DecodeError::UnsupportedApi`] for a key that is not Kafka's, and what bytes can get wrong.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let code = r.i16()?;
        let version = r.i16()?;
        let correlation_id = r.i32()?;
        let key = ApiKey::from_code(code).ok_or(DecodeError::UnsupportedApi { key: code })?;
        // Never compact, so that a broker can read the header of an ApiVersions request newer than itself.
        let client_id = r.nullable_string(false, true)?;
        if flexible(key, version) {
            r.skip_tags()?;
        }
        Ok(Self { key, version, correlation_id, client_id })
    }

    /// Writes the header.
    ///
    /// Errors: [`EncodeError::TooLong`] for the client id.
    pub fn encode(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.i16(self.key.code());
        w.i16(self.version);
        w.i32(self.correlation_id);
        w.nullable_string(false, true, self.client_id.as_ref(), "client_id")?;
        if flexible(self.key, self.version) {
            w.no_tags();
        }
        Ok(())
    }
}

/// The header of a response, versions 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The request's.
    pub correlation_id: i32,
}

impl ResponseHeader {
    /// Reads the header of a response to a request of this key and version.
    ///
    /// Errors: [`DecodeError`].
    pub fn decode(r: &mut Reader, key: ApiKey, version: i16) -> Result<Self, DecodeError> {
        let correlation_id = r.i32()?;
        if Self::flexible(key, version) {
            r.skip_tags()?;
        }
        Ok(Self { correlation_id })
    }

    /// Writes the header of a response to a request of this key and version.
    pub fn encode(self, w: &mut Writer, key: ApiKey, version: i16) {
        w.i32(self.correlation_id);
        if Self::flexible(key, version) {
            w.no_tags();
        }
    }

    /// A client reads the answer to ApiVersions before it knows what the broker speaks, so that one keeps the
    /// old header in all versions (KIP-511).
    fn flexible(key: ApiKey, version: i16) -> bool {
        key != ApiKey::ApiVersions && flexible(key, version)
    }
}
