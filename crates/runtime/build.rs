//! Compiles the protocol without a system `protoc`, and writes its descriptors for gRPC reflection.

use prost::Message;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["common", "link", "control"].map(|name| format!("marline/v1/{name}.proto"));
    let descriptors = protox::compile(files, [root])?;
    println!("cargo:rerun-if-changed={root}");
    let kept = PathBuf::from(std::env::var("OUT_DIR")?).join("marline.bin");
    std::fs::write(kept, descriptors.encode_to_vec())?;
    // Box the message: frames are moved often, and most are far smaller than the largest message.
    tonic_prost_build::configure()
        .bytes(".")
        .boxed(".marline.v1.Data.message")
        .compile_fds(descriptors)?;
    Ok(())
}
