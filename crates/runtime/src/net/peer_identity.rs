//! Which peer a connection comes from: a user of this machine if the kernel knows the user,
//! otherwise an IP address.

use super::frame_connection::Socket;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
    sockopt,
};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum PeerIdentity {
    User(u32),
    Address(IpAddr),
    Unknown,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerIdentity::User(user) => write!(f, "user {user} of this machine"),
            PeerIdentity::Address(address) => address.fmt(f),
            PeerIdentity::Unknown => f.write_str("unknown"),
        }
    }
}

impl PeerIdentity {
    pub fn of(socket: &Socket) -> PeerIdentity {
        match socket {
            Socket::Unix(socket) => {
                let user = sockopt::socket_peercred(socket).map(|peer| peer.uid.as_raw());
                user.map_or(PeerIdentity::Unknown, PeerIdentity::User)
            }
            Socket::Tcp(socket) => match (socket.peer_addr(), socket.local_addr()) {
                (Ok(theirs), Ok(ours)) if theirs.ip().to_canonical().is_loopback() => {
                    user_of(theirs, ours).map_or(PeerIdentity::at(theirs.ip()), PeerIdentity::User)
                }
                (Ok(theirs), _) => PeerIdentity::at(theirs.ip()),
                (Err(_), _) => PeerIdentity::Unknown,
            },
        }
    }
}

impl PeerIdentity {
    /// Returns the identity of a peer on another machine. All IPv6 addresses that share their first
    /// 64 bits count as one machine.
    fn at(address: IpAddr) -> PeerIdentity {
        PeerIdentity::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Ipv6Addr::from_bits(network).into()
            }
        })
    }
}

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` of linux/netlink.h.
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// A `nlmsghdr` and an `inet_diag_req_v2`.
const REQUEST_BYTES: usize = 72;
/// The offset of the user id in the answer: after an `nlmsghdr`, inside an `inet_diag_msg`.
const USER_AT: usize = 80;

/// Asks the kernel which user owns the socket `theirs` of this machine, which is connected to
/// `ours`. The kernel answers at once.
fn user_of(theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let family = if theirs.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend((REQUEST_BYTES as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]); // A sequence number and a port id: unused.
    request.extend([family.as_raw() as u8, TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes()); // In any state.
    request.extend(theirs.port().to_be_bytes());
    request.extend(ours.port().to_be_bytes());
    request.extend(octets(theirs.ip()));
    request.extend(octets(ours.ip()));
    request.extend([0; 4]); // Any interface.
    request.extend([0xff; 8]); // No cookie.
    let flags = SocketFlags::CLOEXEC;
    let kernel = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, kernel).ok()?;
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut answer = [0; 256];
    let (_, len) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    let kind = u16::from_ne_bytes(answer[4..6].try_into().expect("two bytes"));
    let user = answer[USER_AT..USER_AT + 4].try_into().expect("four bytes");
    (kind == BY_FAMILY && len >= USER_AT + 4).then(|| u32::from_ne_bytes(user))
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::io;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;
    use tokio::net;

    #[test]
    fn addresses_of_one_machine_are_one_peer() {
        let at = |text: &str| PeerIdentity::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("192.0.2.1"), at("::ffff:192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    #[test]
    fn a_peer_on_this_machine_is_identified_by_its_user() {
        let me = PeerIdentity::User(rustix::process::getuid().as_raw());
        let _guard = io().enter();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue }; // No IPv6 here.
            let _dials = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (came, _) = listener.accept().unwrap();
            came.set_nonblocking(true).unwrap();
            let socket = Socket::tcp(net::TcpStream::from_std(came).unwrap());
            assert_eq!(PeerIdentity::of(&socket), me, "{address}");
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert_eq!(PeerIdentity::of(&Socket::Unix(net::UnixStream::from_std(ours).unwrap())), me);
    }
}
