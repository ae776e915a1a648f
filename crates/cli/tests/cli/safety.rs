//! Only the user who started a cluster can reach it, on this machine, unless flags allow more.

use crate::harness::Home;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_files_of_a_cluster_are_private_to_its_user() {
    let home = Home::new();
    let folder = home.path().join("run/marline");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let up = home.up(&[]);
    assert!(up.address().starts_with("127.0.0.1:"));
    assert_eq!(mode(&folder), 0o700);
    for name in home.runtime_files() {
        assert_eq!(mode(&folder.join(&name)), 0o600, "{name}");
    }
    assert_eq!(home.runtime_files().len(), 5, "{:?}", home.runtime_files());
    assert!(std::fs::read_to_string(up.token_file()).unwrap().len() > 64);
}

#[test]
fn a_token_file_that_others_can_read_is_rejected() {
    let home = Home::new();
    let up = home.up(&[]);
    let token = Path::new(up.token_file());
    std::fs::set_permissions(token, PermissionsExt::from_mode(0o640)).unwrap();
    let refused = home.marline(&["--json", "status"]);
    assert_eq!((refused.code, refused.error()["kind"].as_str()), (Some(5), Some("Denied")));
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("chmod 600"), "{message}");
}

#[test]
fn a_missing_or_empty_token_file_is_a_usage_error() {
    let home = Home::new();
    let up = home.up(&[]);
    home.private_file("empty", "");
    for (name, why) in [("nofile", "No such file"), ("empty", "is empty")] {
        for at in [&[][..], &["--address", up.address()]] {
            let refused = home.marline(&[&["status", "--token-file", name], at].concat());
            assert_eq!(refused.code, Some(2), "{refused:?}");
            let says = refused.stderr.contains(why) && refused.stderr.contains(name);
            assert!(says && !refused.stderr.contains("(--address)"), "{refused:?}");
        }
    }
}

#[test]
fn commands_without_the_right_token_are_denied() {
    let home = Home::new();
    let up = home.up(&[]);
    let wrong = home.private_file("wrong", "0123456789abcdef\n");
    let wrong = wrong.display().to_string();
    let socket = up.announced["socket"].as_str().unwrap();
    let attempts = [
        vec!["status", "--token-file", &wrong],
        vec!["run", "--token-file", &wrong, "--", "true"],
        vec!["worker", "--token-file", &wrong],
        vec!["status", "--address", socket],
        vec!["tasks", "--address", socket, "--token-file", &wrong],
    ];
    for args in attempts {
        let refused = home.marline(&args);
        assert_eq!(refused.code, Some(5), "{args:?}: {refused:?}");
        let words =
            "token is missing or wrong: pass the one of `marline up` with --token-file FILE";
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    assert_eq!(home.json(&["status"])["counters"]["submitted"], 0);
}

#[test]
fn a_local_cluster_is_found_by_its_port_on_any_loopback_address() {
    let home = Home::new();
    let up = home.up(&[]);
    let (_, port) = up.address().rsplit_once(':').unwrap();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let status = home.json(&["status", "--address", &format!("{host}:{port}")]);
        assert_eq!(status["address"], up.address(), "{host}");
    }
    home.marline(&["run", "--address", &format!("localhost:{port}"), "--", "true"]).succeeded();
}

#[test]
fn a_stranger_on_the_clusters_port_at_another_address_gets_no_token() {
    let home = Home::new();
    let up = home.up(&[]);
    let (_, port) = up.address().rsplit_once(':').unwrap();
    let elsewhere = format!("[::1]:{port}");
    // A machine without this address needs no test: no program can listen there.
    let Ok(stranger) = std::net::TcpListener::bind(&elsewhere) else { return };
    assert_eq!(home.json(&["status", "--address", &elsewhere])["address"], up.address());
    stranger.set_nonblocking(true).unwrap();
    assert_eq!(stranger.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_stranger_at_the_controllers_old_address_gets_no_token() {
    let home = Home::new();
    let token = home.path().join("token").display().to_string();
    let listen = ["--listen", "127.0.0.1:0", "--token-file", &token, "--json"];
    let controller = home.start(&[&["controller"][..], &listen].concat()).announced();
    let address = controller.address().to_owned();
    let worker = ["worker", "--address", &address, "--token-file", &token, "--json"];
    let _worker = home.start(&worker).announced();
    drop(controller); // Dropping kills the process.
    let stranger = std::net::TcpListener::bind(&address).unwrap();
    let secret = std::fs::read_to_string(&token).unwrap();
    for came in stranger.incoming().take(3) {
        let mut came = came.unwrap();
        came.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let mut hello = [0; 38];
        came.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..4], b"MRLN");
        // The stranger claims to be a controller, with a proof that is wrong.
        came.write_all(&[0; 89]).unwrap();
        let mut more = Vec::new();
        let _ = came.read_to_end(&mut more);
        assert!(more.is_empty(), "the stranger was told {more:?}");
        let heard = String::from_utf8_lossy(&hello);
        assert!(!heard.contains(secret.trim()));
    }
}

#[test]
fn a_controller_flooded_with_connections_still_accepts_clients_and_workers() {
    let home = Home::new();
    let listen = ["controller", "--json", "--listen", "127.0.0.1:0"];
    let controller = home.start_with_descriptors(64, &listen).announced();
    let strangers: Vec<_> = (0..300)
        .map(|_| {
            let mut stranger = std::net::TcpStream::connect(controller.address()).unwrap();
            let _ = stranger.write_all(b"P");
            stranger
        })
        .collect();
    // The commands use the port, as the strangers do. The socket of the record is another listener.
    let at = ["--address", controller.address(), "--token-file", controller.token_file()];
    home.marline(&[&["status"][..], &at].concat()).succeeded();
    let _worker = home.start(&[&["worker", "--json"][..], &at].concat()).announced();
    home.marline(&[&["run"][..], &at, &["--", "true"]].concat()).succeeded();
    drop(strangers);
}

#[test]
fn a_short_lived_token_begins_with_its_cluster_id() {
    let home = Home::new();
    let up = home.up(&[]);
    let cluster = home.json(&["status"])["cluster_id"].as_str().unwrap().to_owned();
    let about = home.json(&["token"]);
    assert_eq!((&about["address"], &about["good_for_s"]), (&up.announced["address"], &60.into()));
    let printed = home.marline(&["token"]).succeeded();
    for token in [about["token"].as_str().unwrap(), printed.out().trim()] {
        assert!(token.starts_with(&format!("{cluster}.")), "{token}");
        assert!(!token.contains(std::fs::read_to_string(up.token_file()).unwrap().trim()));
    }
    drop(up);
    assert_eq!(home.marline(&["token"]).code, Some(3));
}

#[test]
fn the_token_in_the_settings_file_is_used_only_for_its_address() {
    let home = Home::new();
    let (one, other) = (home.up(&[]), Home::new());
    let up = other.up(&[]);
    let token = one.token_file();
    let address = one.address();
    other.file(
        ".config/marline/config.toml",
        &format!("address = \"{address}\"\ntoken_file = \"{token}\"\n"),
    );
    assert_eq!(other.json(&["status"])["address"], address);
    let here = other.json(&["status", "--address", up.address()]);
    assert_eq!(here["address"], up.address(), "with its own token, not with the file's");
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let home = Home::new();
    let args = ["worker", "--address", "127.0.0.1:1", "--listen", "0.0.0.0:0"];
    let refused = home.marline(&args);
    assert_eq!(refused.code, Some(5), "{refused:?}");
    assert!(refused.stderr.contains("can be reached from other machines"), "{refused:?}");
}

#[test]
fn a_socket_is_private_and_a_stale_one_is_replaced() {
    let home = Home::new();
    let socket = home.path().join("marline.sock");
    let at = format!("unix:{}", socket.display());
    let first = home.start(&["up", "--json", "--quiet", "--listen", &at]).announced();
    assert_eq!(mode(&socket), 0o600);
    let taken = home.marline(&["up", "--listen", &at]);
    assert_eq!(taken.code, Some(2), "{taken:?}");
    first.signal("KILL");
    first.end();
    assert!(socket.exists());
    let second = home.start(&["up", "--json", "--quiet", "--listen", &at]).announced();
    home.marline(&["run", "--", "true"]).succeeded();
    second.signal("TERM");
    assert_eq!(second.end().code, Some(0));
    assert!(!socket.exists());
}
