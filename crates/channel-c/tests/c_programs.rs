//! Builds the C programs in `tests/c`, and the example at the top of the header, with gcc against
//! the static library. Runs them by themselves, under valgrind, and with AddressSanitizer.
//!
//! A test that the machine cannot run is skipped and prints SKIPPED. `MARLINE_REQUIRE_VALGRIND=1`
//! makes a missing valgrind a failure. Every program bounds its own waits and ends itself when it
//! hangs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory into which cargo put this test, and the library beside it.
fn build_directory() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

fn library() -> PathBuf {
    let library = build_directory().join("libmarline_channel_c.a");
    assert!(library.exists(), "cargo did not build {}", library.display());
    library
}

fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = fs::read_dir(root().join("tests/c"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    assert!(!sources.is_empty());
    sources
}

/// Builds a program. `variant` tells builds of one source apart.
fn build(source: &Path, variant: &str, options: &[&str]) -> PathBuf {
    let directory = build_directory().join("c_programs");
    fs::create_dir_all(&directory).unwrap();
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = directory.join(format!("{name}-{variant}"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1"])
        .args(options)
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg(library())
        .arg("-o")
        .arg(&program)
        .args(LIBRARIES);
    run(&mut gcc);
    program
}

/// Runs a command that must succeed, and returns its output. Shows the output if it fails.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn every_program_succeeds() {
    for source in sources() {
        println!("{}", source.display());
        run(&mut Command::new(build(&source, "plain", &[])));
    }
}

#[test]
fn every_program_is_clean_under_valgrind() {
    if !works(Command::new("valgrind").arg("--version")) {
        assert!(
            env::var_os("MARLINE_REQUIRE_VALGRIND").is_none(),
            "MARLINE_REQUIRE_VALGRIND is set, and valgrind is not on the path"
        );
        println!("SKIPPED: valgrind is not on the path");
        return;
    }
    for source in sources() {
        println!("valgrind {}", source.display());
        let program = build(&source, "valgrind", &[]);
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--fair-sched=yes"])
            .args(["--errors-for-leak-kinds=definite,indirect"])
            .arg(program);
        run(&mut valgrind);
    }
}

#[test]
fn every_program_is_clean_under_address_sanitizer() {
    const SANITIZE: &str = "-fsanitize=address";
    let probe = build_directory().join("c_programs/probe.c");
    fs::create_dir_all(probe.parent().unwrap()).unwrap();
    fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
    let executable = probe.with_extension("");
    let supported = works(Command::new("gcc").arg(SANITIZE).arg(&probe).arg("-o").arg(&executable))
        && works(&mut Command::new(&executable));
    if !supported {
        println!("SKIPPED: gcc cannot build and run programs with {SANITIZE}");
        return;
    }
    for source in sources() {
        println!("{SANITIZE} {}", source.display());
        let program = build(&source, "asan", &[SANITIZE, "-fno-omit-frame-pointer"]);
        run(&mut Command::new(program));
    }
}

/// The example is the lines of the preface between EXAMPLE and the next heading, without ` *     `.
#[test]
fn the_example_in_the_header_works() {
    let header = fs::read_to_string(root().join("include/marline_channel.h")).unwrap();
    let example: String = header
        .lines()
        .skip_while(|line| !line.contains("EXAMPLE"))
        .skip(1)
        .take_while(|line| !line.contains("RETURN CODES"))
        .map(|line| line.strip_prefix(" *     ").unwrap_or("").to_owned() + "\n")
        .collect();
    assert!(example.contains("int main(void)"));
    let source = build_directory().join("c_programs/example.c");
    fs::create_dir_all(source.parent().unwrap()).unwrap();
    fs::write(&source, example).unwrap();
    let stdout = run(&mut Command::new(build(&source, "plain", &["-pedantic"])));
    assert!(stdout.starts_with("sum 55, then: closed"), "{stdout}");
}

#[test]
fn the_header_compiles_as_c_plus_plus() {
    if !works(Command::new("g++").arg("--version")) {
        println!("SKIPPED: g++ is not on the path");
        return;
    }
    let mut cpp = Command::new("g++");
    cpp.args(["-Wall", "-Wextra", "-Werror", "-std=c++17", "-fsyntax-only", "-x", "c++"])
        .arg(root().join("include/marline_channel.h"));
    run(&mut cpp);
}

#[test]
fn a_c_program_runs_with_the_shared_library() {
    let source = root().join("tests/c/basics.c");
    let program = build_directory().join("c_programs/basics-shared");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-D_GNU_SOURCE"])
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg("-L")
        .arg(build_directory())
        .args(["-Wl,-Bdynamic", "-l:libmarline_channel_c.so"])
        .arg("-o")
        .arg(&program)
        .args(LIBRARIES);
    run(&mut gcc);
    run(Command::new(program).env("LD_LIBRARY_PATH", build_directory()));
}
