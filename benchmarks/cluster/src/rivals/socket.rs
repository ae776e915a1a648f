//! The floor: a few bytes through a socket to another process and back. Both ends block.

use crate::child::{Child, ready};
use crate::contest::Contestant;
use crate::marline_cluster::Transport;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

pub const NAME: &str = "raw socket";

const BYTES: usize = 16;

pub fn contestant(transport: Transport) -> Contestant {
    let server = Child::start(&["socket", &transport.anywhere()]);
    match server.ready_line.strip_prefix("unix:") {
        Some(path) => asking(UnixStream::connect(path).expect("the server listens"), server),
        None => {
            let stream = TcpStream::connect(&server.ready_line).expect("the server listens");
            stream.set_nodelay(true).expect("TCP has the option");
            asking(stream, server)
        }
    }
}

fn asking(mut stream: impl Read + Write + 'static, server: Child) -> Contestant {
    let once = move || {
        let _keep = &server;
        let mut bytes = [7; BYTES];
        stream.write_all(&bytes).expect("the server lives");
        stream.read_exact(&mut bytes).expect("the server answers");
    };
    Contestant { name: NAME, once: Box::new(once), bulk: None }
}

/// Runs the server, as a child process.
pub fn serve(at: &str) {
    if let Some(path) = at.strip_prefix("unix:") {
        let listener = UnixListener::bind(path).expect("the path is free");
        std::thread::spawn(move || echo(listener.accept().expect("a client comes").0));
        return ready(at);
    }
    let listener = TcpListener::bind(at).expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client comes");
        stream.set_nodelay(true).expect("TCP has the option");
        echo(stream);
    });
    ready(&address);
}

fn echo(mut stream: impl Read + Write) {
    let mut bytes = [0; BYTES];
    while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
}
