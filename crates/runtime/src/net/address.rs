//! Where others are: which addresses make sense.

use marline_core::error::Error;
use std::net::Ipv6Addr;

/// Whether somebody could be at this address: `HOST:PORT` or `unix:/path`.
pub fn check_address(address: &str) -> Result<(), Error> {
    let makes_sense = match address.strip_prefix("unix:") {
        Some(path) => !path.trim_start_matches('/').is_empty(),
        None => is_host_and_port(address.strip_prefix("http://").unwrap_or(address)),
    };
    if makes_sense {
        return Ok(());
    }
    let expected = "expected HOST:PORT or unix:/path, such as 127.0.0.1:7420";
    Err(Error::invalid(format!("{address:?} is no address: {expected}")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;

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
