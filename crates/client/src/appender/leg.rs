//! One `ProduceStream` to one broker.

use semel_proto::v1::{
    self, ErrorCode, log_service_client::LogServiceClient, produce_stream_response::Outcome,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::engine::Event;
use crate::error::{Failed, Fate};

/// Carries requests to `address` and answers to the engine until either side ends.
pub(super) async fn run(
    leg: u64,
    address: String,
    mut client: LogServiceClient<Channel>,
    requests: mpsc::Receiver<v1::ProduceStreamRequest>,
    events: mpsc::Sender<Event>,
) {
    let ended = |text: &str| Failed {
        address: address.clone(),
        error: v1::Error::new(ErrorCode::NetworkException, text),
        fate: Fate::Unknown,
    };
    let failed = match client.produce_stream(ReceiverStream::new(requests)).await {
        Err(status) => Failed::status(&address, &status),
        Ok(response) => {
            let mut answers = response.into_inner();
            loop {
                match answers.message().await {
                    Ok(Some(v1::ProduceStreamResponse { number, outcome })) => {
                        let outcome = match outcome {
                            Some(Outcome::Response(response)) => Ok(response),
                            Some(Outcome::Error(error)) => Err(error),
                            None => break ended("the broker sent an answer without an outcome"),
                        };
                        if events.send(Event::Answered { leg, number, outcome }).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break ended("the broker ended the stream"),
                    Err(status) => break Failed::status(&address, &status),
                }
            }
        }
    };
    // The engine may be gone: then nothing waits on this leg.
    let _ = events.send(Event::Down { leg, failed }).await;
}
