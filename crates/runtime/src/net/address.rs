//! Addresses of other processes: which ones are valid, and why a process cannot be reached, as text
//! for the user.

use super::handshake;
use marline_core::error::{Error, ErrorKind, Ran};
use std::fs::File;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use tonic::{Code, Status};

/// The user's next step when an address cannot be reached.
const NEXT: &str = "start a cluster with `marline up`, or check the address";

/// Checks that an address has a valid form: `HOST:PORT` or `unix:/path`.
pub fn check_address(address: &str) -> Result<(), Error> {
    let makes_sense = match address.strip_prefix("unix:") {
        Some(path) => !path.trim_start_matches('/').is_empty(),
        None => is_host_and_port(address.strip_prefix("http://").unwrap_or(address)),
    };
    if makes_sense {
        return Ok(());
    }
    let expected = "expected HOST:PORT or unix:/path, such as 127.0.0.1:7420";
    Err(Error::invalid(format!("{address:?} is not an address: {expected}")))
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    is_port && is_host(host)
}

fn is_host(text: &str) -> bool {
    if let Some(text) = text.strip_prefix('[') {
        let text = text.strip_suffix(']');
        return text.is_some_and(|text| text.parse::<Ipv6Addr>().is_ok());
    }
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.chars().all(of_name)
}

/// Why this process could not connect, and whether another attempt may help.
pub(crate) struct ConnectError {
    pub error: Error,
    /// Whether another attempt may help: a controller may be about to start.
    pub is_retryable: bool,
}

impl ConnectError {
    /// Explains a status that the transport made itself: no process of a cluster was reached.
    /// Returns `None` if the status is the reply of a process of a cluster.
    pub fn of_transport(address: &str, status: &Status) -> Option<ConnectError> {
        if !status.details().is_empty() {
            return None;
        }
        if status.message().contains("grpc-status header missing") {
            let words =
                format!("another program answers at {address}, not Marline: check the address");
            return Some(ConnectError {
                error: Error::unavailable(Ran::No, words),
                is_retryable: false,
            });
        }
        if status.code() != Code::Unavailable {
            return None;
        }
        Some(match deepest(status) {
            Some(cause) => ConnectError::of_dialling(address, cause),
            None => ConnectError {
                error: nobody_answers(address, status.message()),
                is_retryable: true,
            },
        })
    }

    /// Explains why no connection could be made to this address.
    pub fn of_dialling(address: &str, cause: &io::Error) -> ConnectError {
        if let Some(refused) = handshake::rejection(cause) {
            let words = format!("{address}: {}", refused.message());
            return ConnectError::from_reply(Error::new(refused.kind(), words).ran(Ran::No));
        }
        let (why, may_pass) = why(address, cause);
        ConnectError { error: nobody_answers(address, &why), is_retryable: may_pass }
    }

    /// Wraps an error that a process of the cluster replied. Another attempt helps only if its kind
    /// is `Unavailable`.
    pub fn from_reply(error: Error) -> ConnectError {
        let may_pass = error.kind() == ErrorKind::Unavailable;
        ConnectError { error, is_retryable: may_pass }
    }
}

/// Returns the error for an address at which no process of a cluster answers.
pub(crate) fn nobody_answers(address: &str, why: &str) -> Error {
    // This function does not know whether work was done before the connection broke.
    Error::unavailable(Ran::Maybe, format!("no cluster answers at {address} ({why}): {NEXT}"))
}

/// Returns the operating system's error, the innermost of the chain of sources.
fn deepest(status: &Status) -> Option<&io::Error> {
    let mut found = None;
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        found = error.downcast_ref::<io::Error>().or(found);
        next = error.source();
    }
    found
}

/// Describes the cause in words, and returns whether waiting may help.
fn why(address: &str, cause: &io::Error) -> (String, bool) {
    let text = cause.to_string();
    match cause.kind() {
        io::ErrorKind::ConnectionRefused => ("connection refused".into(), true),
        io::ErrorKind::TimedOut => ("timed out".into(), true),
        io::ErrorKind::NotFound if !has_folder(address) => ("no such folder".into(), false),
        io::ErrorKind::NotFound => ("no such file".into(), true),
        io::ErrorKind::NotADirectory => ("not a folder".into(), false),
        io::ErrorKind::PermissionDenied => ("permission denied".into(), false),
        // A name may become known when the machine of that name starts.
        _ if text.contains("failed to lookup address") => ("unknown host name".into(), true),
        _ => (text, true),
    }
}

/// Returns whether the folder of the socket exists, so that a process could create the socket
/// there.
fn has_folder(address: &str) -> bool {
    let path = address.strip_prefix("unix:").map(|path| Path::new(path.trim_start_matches("//")));
    let folder = path.and_then(Path::parent);
    folder.is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir())
}

/// The longest path of a socket, in bytes: `sun_path` of unix(7) has 108 bytes, one of them a final
/// zero.
const MAX_SOCKET_PATH: usize = 107;

/// Returns a path to the same socket that is short enough for the kernel. A long path goes through
/// the descriptor of its folder, and is valid as long as that descriptor is open.
pub(crate) fn short_path(path: &Path) -> io::Result<(Option<File>, PathBuf)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok((None, path.into()));
    };
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return Ok((None, path.into()));
    }
    let folder = File::open(folder)?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((Some(folder), short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_socket() {
        let right = ["127.0.0.1:7420", "localhost:1", "a-b.c_d:65535", "[::1]:7420", "unix:/run/x"];
        for address in right {
            check_address(address).unwrap();
        }
        let wrong = [
            "",
            "5",
            "nonsense",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:99999",
            ":7420",
            "::1:7420",
            "[::1:7420",
            "a b:7420",
            "https://a:7420",
            "unix:",
            "unix:/",
        ];
        for address in wrong {
            let error = check_address(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{address}");
            let expected = "expected HOST:PORT or unix:/path, such as 127.0.0.1:7420";
            assert!(error.message().ends_with(expected), "{error}");
        }
    }
}
