//! The gateway over real sockets, in front of a toy backend.

#[path = "support/mod.rs"]
mod support;

mod cases {
    pub(crate) mod bounds;
    pub(crate) mod fetch;
    pub(crate) mod frames;
    pub(crate) mod order;
    pub(crate) mod stop;
}
