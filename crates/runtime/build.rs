//! Compiles the protocol without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["marline/v1/common.proto", "marline/v1/link.proto"];
    let descriptors = protox::compile(files, [root])?;
    println!("cargo:rerun-if-changed={root}");
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
