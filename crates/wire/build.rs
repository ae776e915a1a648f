//! Compiles the protocol without a system `protoc`, and writes its descriptors for gRPC reflection.
//! The services are not compiled here: they need a gRPC library, and only `marline-runtime` has one.

use prost::Message;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["common", "link", "control"].map(|name| format!("marline/v1/{name}.proto"));
    let descriptors = protox::compile(files, [root])?;
    println!("cargo:rerun-if-changed={root}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("marline.bin"), descriptors.encode_to_vec())?;
    let config = || {
        let mut config = prost_build::Config::new();
        config.bytes(["."]);
        config
    };
    // Box the message: frames are moved often, and most are far smaller than the largest message.
    config().boxed(".marline.v1.Data.message").compile_fds(descriptors)?;
    // The protocol of executors is not public, so it is not among the descriptors. A folder of its
    // own keeps it from writing the file of the public types again.
    let executor = protox::compile(["marline/executor/v1/executor.proto"], [root])?;
    let folder = out.join("executor");
    std::fs::create_dir_all(&folder)?;
    config().extern_path(".marline.v1", "crate::v1").out_dir(folder).compile_fds(executor)?;
    Ok(())
}
