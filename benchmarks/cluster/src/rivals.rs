//! The rivals: what one would build by hand to answer the same requests without a cluster.

pub mod grpc;
pub mod mailbox;
pub mod socket;
