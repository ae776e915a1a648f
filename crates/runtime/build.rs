//! Compiles the protocol without a system `protoc`, and keeps its descriptors for reflection.

use prost::Message;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["common", "link", "control"].map(|name| format!("marline/v1/{name}.proto"));
    let descriptors = protox::compile(files, [root])?;
    println!("cargo:rerun-if-changed={root}");
    let kept = PathBuf::from(std::env::var("OUT_DIR")?).join("marline.bin");
    std::fs::write(kept, descriptors.encode_to_vec())?;
    // Frames are moved about a lot, and most carry far less than the largest message.
    tonic_prost_build::configure()
        .bytes(".")
        .boxed(".marline.v1.Data.message")
        .compile_fds(descriptors)?;
    Ok(())
}
