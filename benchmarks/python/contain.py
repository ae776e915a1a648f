"""Isolates a program in namespaces: it sees no network but `lo`, and no processes but its own.

Ray listens on every interface whatever its options say, and leaves processes behind. In the
namespaces nobody can reach its listeners. When the first process of the namespaces ends, the kernel
kills all others.

`command_prefix` returns the words to put before a command. As a program, this file is the first
process of the namespaces, and runs the command. Every contestant is isolated if the machine allows
it. If it does not, the others run without isolation, and Ray is not measured.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable

UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# A user who is not root may be root in a user namespace, if the kernel allows that.
AS_ROOT = ["--user", "--map-root-user"]

# From <linux/sockios.h> and <linux/if.h>.
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1


@functools.cache
def command_prefix() -> list[str] | None:
    """Returns the words to put before a command to isolate it, or None if that is impossible."""
    for unshare in (UNSHARE, [UNSHARE[0], *AS_ROOT, *UNSHARE[1:]]):
        prefix = [*unshare, sys.executable, __file__]
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, timeout=30).returncode == 0:
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def flags(name: str, change: int | None = None) -> int:
    """Returns the flags of an interface. If `change` is given, sets them first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        if change is not None:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), change))
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
    return int(struct.unpack_from("h", answer, 16)[0])


def interfaces() -> list[str]:
    """Returns the network interfaces that are up."""
    return [name for _, name in socket.if_nameindex() if flags(name) & IFF_UP]


def require_isolation(others: Iterable[int] = ()) -> None:
    """Exits this program unless it is isolated, and these processes share its network namespace."""
    if interfaces() != ["lo"]:
        sys.exit(
            f"not isolated: listeners on {', '.join(interfaces())} could be reached; start it with contain.py"
        )
    here = os.readlink("/proc/self/ns/net")
    for pid in others:
        try:
            there = os.readlink(f"/proc/{pid}/ns/net")
        except FileNotFoundError:
            continue  # It has ended.
        if there != here:
            sys.exit(f"process {pid} is not isolated: its listeners can be reached")


def main() -> int:
    flags("lo", flags("lo") | IFF_UP)
    require_isolation()
    return subprocess.call(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
