//! What one would build by hand: the same question asked and answered without a cluster.

pub mod grpc;
pub mod mailbox;
pub mod socket;
