//! The gRPC front door: `semel.v1`, with the same checks and error names as the Kafka listener.

mod admin;
mod cluster;
mod log;

use std::sync::{Arc, OnceLock};

use semel_kafka_wire::ErrorCode;
use semel_proto::v1::{
    admin_service_server::AdminServiceServer, cluster_service_server::ClusterServiceServer,
    log_service_server::LogServiceServer,
};
use semel_service::grpc::Server;

use crate::{failure::Failure, node::Node};

/// The largest message taken: the largest frame of the Kafka listener.
const MESSAGE_BYTES_MAX: usize = 100 << 20;

/// The broker's gRPC services. They can be served before the broker is there, which in one process with the
/// controller they must be; until then each call fails with BROKER_NOT_AVAILABLE.
#[derive(Clone, Default)]
pub struct FrontDoor {
    node: Arc<OnceLock<Arc<Node>>>,
}

impl FrontDoor {
    /// Closed until the broker has started.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the services to a server.
    #[must_use]
    pub fn add_to(&self, server: Server) -> Server {
        server
            .add_service(
                LogServiceServer::new(log::Log { door: self.clone() })
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(usize::MAX),
            )
            .add_service(AdminServiceServer::new(admin::Admin { door: self.clone() }))
            .add_service(
                ClusterServiceServer::new(cluster::Cluster { door: self.clone() })
                    .max_encoding_message_size(usize::MAX),
            )
    }

    pub(crate) fn open(&self, node: Arc<Node>) {
        // A door opens once; a second broker behind one door would be a mistake of whoever starts it.
        assert!(self.node.set(node).is_ok(), "the front door has a broker already");
    }

    fn node(&self) -> Result<&Arc<Node>, Failure> {
        self.node
            .get()
            .ok_or_else(|| Failure::new(ErrorCode::BrokerNotAvailable, "the broker is starting, try again shortly"))
    }
}
