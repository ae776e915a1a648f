//! Hands what a connection brings to the node, and notices its end.

use super::frame_connection::{FrameConnection, FrameHandler};
use super::outbox::Outbox;
use crate::node::{LinkId, Node};
use crate::process_identity::is_dead;
use marline_core::error::{Error, Ran};
use marline_core::id::Session;
use marline_wire::frame::Direction;
use marline_wire::join::ProcessIdentity;
use marline_wire::v1;
use std::sync::Weak;
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::Streaming;

/// One connection of a link, as it is read.
pub(super) struct LinkReader {
    node: Weak<Node>,
    which: LinkId,
    connection: u64,
    /// In which direction what arrives travels; nothing if the node is gone.
    direction: Option<Direction>,
    heard: bool,
}

impl LinkReader {
    pub fn new(node: Weak<Node>, which: LinkId, connection: u64) -> LinkReader {
        let direction = node.upgrade().map(|node| node.direction(which));
        LinkReader { node, which, connection, direction, heard: false }
    }

    /// Says what the peer did wrong, if it did.
    fn deliver(&mut self, frames: Vec<v1::Frame>) -> Result<(), Error> {
        let (Some(node), Some(direction)) = (self.node.upgrade(), self.direction) else {
            return Err(Error::unavailable(Ran::Maybe, "this process is shutting down"));
        };
        if frames.is_empty() {
            return Ok(());
        }
        node.received(self.which, self.connection, direction, frames)
    }

    /// Reads a gRPC stream until it ends. Says what the peer did wrong, if that is why.
    pub async fn read(
        mut self,
        first: Vec<v1::Frame>,
        mut incoming: Streaming<v1::Frames>,
    ) -> Result<(), Error> {
        let mut heard = self.deliver(first);
        while heard.is_ok() {
            let Some(Ok(message)) = incoming.next().await else { break };
            heard = self.deliver(message.frames);
            self.acknowledge();
        }
        self.end();
        heard
    }

    /// Carries a plain connection until it ends. Says whether anything came.
    pub async fn carry(
        mut self,
        connection: FrameConnection,
        outbox: Outbox,
        first: Vec<v1::Frame>,
    ) -> bool {
        if self.deliver(first).is_ok() {
            connection.run(&outbox, &mut self).await;
        }
        outbox.close();
        self.end();
        self.heard
    }

    fn end(&self) {
        let Some(node) = self.node.upgrade() else { return };
        if let Some((session, process)) = node.disconnected(self.which, self.connection) {
            tokio::spawn(watch_process_exit(self.node.clone(), session, process));
        }
    }
}

impl FrameHandler for &mut LinkReader {
    fn received(&mut self, frames: Vec<v1::Frame>) -> bool {
        self.heard = true;
        self.deliver(frames).is_ok()
    }

    fn acknowledge(&mut self) {
        LinkReader::acknowledge(self);
    }
}

impl LinkReader {
    fn acknowledge(&self) {
        if let Some(node) = self.node.upgrade() {
            node.acknowledge(self.which);
        }
    }
}

/// How often, and for how long, the process of a session without a connection is checked for its
/// death.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_FOR: Duration = Duration::from_secs(10);

/// Watches the process of a session whose connection broke. If the process is gone, the session
/// ends at once instead of when its lease ends. Stops when the session has a connection again, or
/// is over.
async fn watch_process_exit(node: Weak<Node>, session: Session, process: ProcessIdentity) {
    let end = tokio::time::Instant::now() + LOOK_FOR;
    while tokio::time::Instant::now() < end {
        let Some(node) = node.upgrade() else { return };
        if !node.is_cut_off(session) {
            return;
        }
        if is_dead(&process) {
            return node.process_died(session, format!("process {} is gone", process.pid));
        }
        drop(node);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
