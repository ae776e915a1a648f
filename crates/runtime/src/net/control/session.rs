//! Sessions of callers without a link.

use super::ControlService;
use marline_core::Error;
use marline_core::recent_events::{EventSummary, Subject};
use marline_wire::convert::control::{check_version, id_or_new, session, session_name};
use marline_wire::v1;
use std::time::Duration;

/// Returns a lease in milliseconds, rounded down, so that the caller never assumes a longer lease
/// than the controller does.
fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

impl ControlService {
    pub(super) fn open_session(
        &self,
        request: v1::OpenSessionRequest,
    ) -> Result<v1::OpenSessionReply, Error> {
        check_version(&request.protocol)?;
        let field = "OpenSessionRequest.session_id";
        let id = id_or_new(&request.session_id, field, crate::new_session_id)?;
        let open = EventSummary::of("OpenSession", Subject::Process(id));
        self.node()?.with_controller_mut(open, |controller, now, effects| {
            let session = controller.open_unlinked(now, id, effects)?;
            let lease = controller.config().terms.lease;
            Ok(v1::OpenSessionReply {
                session: Some(session_name(session)),
                lease_ms: lease_ms(lease),
            })
        })
    }

    pub(super) fn keep_alive(
        &self,
        request: v1::KeepAliveRequest,
    ) -> Result<v1::KeepAliveReply, Error> {
        let session = session(request.session, "KeepAliveRequest.session")?;
        let keep_alive = EventSummary::of("KeepAlive", Subject::Nothing).from(session);
        let lease = self.node()?.with_controller_mut(keep_alive, |controller, now, effects| {
            controller.keep_alive(now, session, effects)
        })?;
        Ok(v1::KeepAliveReply { lease_ms: lease_ms(lease) })
    }

    pub(super) fn close_session(
        &self,
        request: v1::CloseSessionRequest,
    ) -> Result<v1::CloseSessionReply, Error> {
        let session = session(request.session, "CloseSessionRequest.session")?;
        let close = EventSummary::of("CloseSession", Subject::Nothing).from(session);
        self.node()?.with_controller_mut(close, |controller, now, effects| {
            controller.close_unlinked(now, session, effects)
        })?;
        Ok(v1::CloseSessionReply {})
    }
}
