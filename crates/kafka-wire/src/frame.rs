//! Whole frames: header and body, in and out.

use bytes::Bytes;

use crate::api_key::{ApiKey, support};
use crate::error_code::ErrorCode;
use crate::header::{RequestHeader, ResponseHeader};
use crate::kstring::KString;
use crate::messages::api_versions::ApiVersion;
use crate::messages::{ApiVersionsResponse, Request, Response};
use crate::read::{DecodeError, Reader};
use crate::write::{EncodeError, Frame, Writer};

/// The lowest version of Produce that a broker advertises, though it serves none below 3: older librdkafka picks
/// its record format by this number and stops if it is higher (KAFKA-18659).
pub const PRODUCE_ADVERTISED_MIN: i16 = 0;

/// Reads the header of a request, and leaves the body in the reader for [`Request::decode`].
///
/// In between the caller can refuse a version it does not serve: [`encode_unsupported_api_versions`] for
/// ApiVersions; for any other API Kafka closes the connection.
///
/// `frame` stands without its four bytes of length. Errors: [`DecodeError`].
pub fn decode_frame(frame: Bytes) -> Result<(RequestHeader, Reader), DecodeError> {
    let mut reader = Reader::new(frame);
    let header = RequestHeader::decode(&mut reader)?;
    Ok((header, reader))
}

/// Reads a whole request. `frame` stands without its four bytes of length. Does not panic, whatever the bytes.
///
/// Errors: [`DecodeError`].
pub fn decode_any(frame: Bytes) -> Result<(RequestHeader, Request), DecodeError> {
    let (header, mut reader) = decode_frame(frame)?;
    let body = Request::decode(header.key, header.version, &mut reader)?;
    Ok((header, body))
}

/// Reads a whole response to a request of this key and version; gives its correlation id and body.
///
/// `frame` stands without its four bytes of length. Errors: [`DecodeError`].
pub fn decode_response(frame: Bytes, key: ApiKey, version: i16) -> Result<(i32, Response), DecodeError> {
    let mut reader = Reader::new(frame);
    let header = ResponseHeader::decode(&mut reader, key, version)?;
    let body = Response::decode(key, version, &mut reader)?;
    Ok((header.correlation_id, body))
}

/// A request's frame, ready to send.
///
/// Errors: [`EncodeError`].
pub fn encode_request(
    correlation_id: i32,
    client_id: Option<KString>,
    version: i16,
    body: &Request,
) -> Result<Frame, EncodeError> {
    let mut w = Writer::framed();
    RequestHeader { key: body.key(), version, correlation_id, client_id }.encode(&mut w)?;
    body.encode(&mut w, version)?;
    w.into_frame()
}

/// A response's frame, in the version of its request.
///
/// Errors: [`EncodeError`].
pub fn encode_response(correlation_id: i32, version: i16, body: &Response) -> Result<Frame, EncodeError> {
    let mut w = Writer::framed();
    ResponseHeader { correlation_id }.encode(&mut w, body.key(), version);
    body.encode(&mut w, version)?;
    w.into_frame()
}

/// The answer to an ApiVersions request of a version that the broker does not know: a body of version 0 with
/// UNSUPPORTED_VERSION and the range of ApiVersions alone, so that the client can ask again (KIP-511).
///
/// Errors: none in practice; the signature is that of the other encoders.
pub fn encode_unsupported_api_versions(correlation_id: i32) -> Result<Frame, EncodeError> {
    let api_keys = support(ApiKey::ApiVersions)
        .map(|own| ApiVersion { api_key: own.key.code(), min_version: own.min, max_version: own.stable_max })
        .into_iter()
        .collect();
    let body =
        ApiVersionsResponse { error_code: ErrorCode::UnsupportedVersion, api_keys, ..Default::default() };
    encode_response(correlation_id, 0, &Response::ApiVersions(body))
}
