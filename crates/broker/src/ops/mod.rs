//! What this broker does for a client, whichever door the request came in by.

pub(crate) mod configs;
pub(crate) mod offsets;
pub(crate) mod topics;
pub(crate) mod visible;
