//! Translates statuses that the transport makes itself into Marline's errors: for a request that is
//! too large, one that cannot be decoded, and one that names an unknown operation. Such a request
//! never reaches an operation.

use super::MAX_MESSAGE_BYTES;
use super::status::to_status;
use marline_core::Error;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// A service that replaces the statuses of the transport by statuses that carry an error of
/// Marline.
#[derive(Clone)]
pub(crate) struct StatusTranslator<S>(pub S);

impl<S: NamedService> NamedService for StatusTranslator<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for StatusTranslator<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let response = answer.await?;
            let status = Status::from_header_map(response.headers());
            Ok(match status.and_then(explain) {
                Some(error) => to_status(error).into_http(),
                None => response,
            })
        })
    }
}

/// Returns the error that a status of the transport stands for. Returns `None` if the status has an
/// error in its details already, or a code that the module does not translate.
fn explain(status: Status) -> Option<Error> {
    if !status.details().is_empty() {
        return None;
    }
    match status.code() {
        Code::OutOfRange => Some(Error::too_large(format!(
            "a message has more than {MAX_MESSAGE_BYTES} bytes, which is the limit (MAX_MESSAGE_BYTES): \
             {}",
            status.message()
        ))),
        Code::Internal => Some(Error::invalid(format!(
            "the request cannot be decoded: {}: check that its message type fits the operation",
            status.message()
        ))),
        Code::Unimplemented => {
            Some(Error::unsupported("unknown operation: list the known ones with gRPC reflection"))
        }
        _ => None,
    }
}
