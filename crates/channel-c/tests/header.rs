//! Tests that the checked-in header is what cbindgen generates from the source today, and that some
//! C test program calls every function in it.

use std::{fs, path::Path};

const HEADER: &str = "include/marline_channel.h";

/// The environment variable that makes the test write the header instead of comparing it.
const REWRITE: &str = "MARLINE_WRITE_HEADER";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generated() -> String {
    let mut config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    config.header = Some(fs::read_to_string(root().join("include/preface.h")).unwrap());
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root().join("src/lib.rs"))
        .generate()
        .expect("cbindgen reads the source");
    let mut header = vec![];
    bindings.write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_checked_in_header_is_up_to_date() {
    let path = root().join(HEADER);
    let header = generated();
    if std::env::var_os(REWRITE).is_some() {
        fs::write(&path, header).unwrap();
        return;
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        checked_in == header,
        "{HEADER} does not match src/: run `{REWRITE}=1 cargo test -p marline-channel-c --test header`"
    );
}

#[test]
fn every_function_is_exercised_by_a_c_program() {
    let header = generated();
    let programs: String = fs::read_dir(root().join("tests/c"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let functions: Vec<&str> = header
        .lines()
        .filter(|line| line.starts_with("int marline_") || line.starts_with("const char *marline_"))
        .filter_map(|line| line.split('(').next()?.split(['*', ' ']).next_back())
        .collect();
    assert!(functions.len() > 40, "{functions:?}");
    let missing: Vec<&&str> =
        functions.iter().filter(|name| !programs.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "no C program calls {missing:?}");
}
