//! Several batches in a row, as a fetch or a segment holds them.

use bytes::Bytes;

use crate::{Batch, BatchError, BatchHeader, LOG_OVERHEAD};

/// Walks whole batches. A partial one at the end is no error: a fetch may cut there; see
/// [`remainder`](Self::remainder). Ends after the first error.
///
/// Errors: those of [`BatchHeader::parse`], but [`BatchError::Truncated`].
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
    failed: bool,
}

impl Batches {
    /// A walk over `bytes`, which begin with a batch.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, failed: false }
    }

    /// What has not been walked: after the end, the bytes of a partial batch or, after an error, from the bad
    /// batch on.
    #[must_use]
    pub const fn remainder(&self) -> &Bytes {
        &self.rest
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match next_header(&self.rest)? {
            Ok(header) => {
                let bytes = self.rest.split_to(header.size_in_bytes());
                Some(Ok(Batch { header, bytes }))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Walks the headers of whole batches in borrowed bytes, with the position of each; otherwise as [`Batches`].
#[derive(Clone, Debug)]
pub struct BatchHeaders<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> BatchHeaders<'a> {
    /// A walk over `bytes`, which begin with a batch.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, failed: false }
    }

    /// Where the walk stands: after the end, the length of the whole batches.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.at
    }
}

impl Iterator for BatchHeaders<'_> {
    type Item = Result<(usize, BatchHeader), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match next_header(&self.bytes[self.at..])? {
            Ok(header) => {
                let at = self.at;
                self.at += header.size_in_bytes();
                Some(Ok((at, header)))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// The header of a whole batch in front; `None` if the bytes end before it does.
fn next_header(bytes: &[u8]) -> Option<Result<BatchHeader, BatchError>> {
    if bytes.len() < LOG_OVERHEAD {
        return None;
    }
    match BatchHeader::parse(bytes) {
        Ok(header) if bytes.len() < header.size_in_bytes() => None,
        Ok(header) => Some(Ok(header)),
        Err(BatchError::Truncated { .. }) => None,
        Err(error) => Some(Err(error)),
    }
}
