//! Compiles the gRPC services of the protocol. Their messages are those of `marline-wire`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["link", "control"].map(|name| format!("marline/v1/{name}.proto"));
    let descriptors = protox::compile(files, [root])?;
    println!("cargo:rerun-if-changed={root}");
    tonic_prost_build::configure()
        .extern_path(".marline.v1", "::marline_wire::v1")
        .compile_fds(descriptors)?;
    Ok(())
}
