//! The gRPC interfaces of Semel: code generated from `proto/`, and the only conversions between it and the
//! domain's types.
//!
//! [`v1`] is public: log, admin, cluster. [`internal`] is between Semel's own nodes. This crate must never decide
//! anything: a conversion either succeeds or names what is malformed.
//!
//! Start with `proto/semel/v1/log.proto`; [`error`] carries Kafka's error names through a gRPC status.

pub mod error;
pub mod metadata;

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::large_enum_variant,
    clippy::doc_markdown,
    clippy::disallowed_types,
    rust_2018_idioms
)]
mod generated {
    pub mod semel {
        pub mod v1 {
            tonic::include_proto!("semel.v1");
        }
        pub mod internal {
            pub mod v1 {
                tonic::include_proto!("semel.internal.v1");
            }
        }
    }
}

pub use generated::semel::v1;

/// Between Semel's own nodes: may change with each release.
pub mod internal {
    pub use super::generated::semel::internal::v1;
}

/// Every message and service, as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
