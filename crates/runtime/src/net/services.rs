//! The gRPC services of the protocol: clients and servers. Their messages are in `marline-wire`.

#![allow(missing_docs, clippy::all)]

tonic::include_proto!("marline.v1");
