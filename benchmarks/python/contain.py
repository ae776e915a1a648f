"""A cage: namespaces in which a program sees no network but `lo` and no processes but its own.

Ray listens on every interface whatever it is told, and leaves processes behind. In the cage nobody hears it;
and when the cage's first process ends, the kernel ends all the others. `words` gives what to put before a
command; this file as a program is the cage's first process. Everybody is measured in it, where it can be
made; Ray only there.
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
# Who is not root may be root in a namespace of users, where the kernel allows that.
AS_ROOT = ["--user", "--map-root-user"]

# From <linux/sockios.h> and <linux/if.h>.
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1


@functools.cache
def words() -> list[str] | None:
    """What to put before a command, so that it runs in a cage; None where none can be made."""
    for unshare in (UNSHARE, [UNSHARE[0], *AS_ROOT, *UNSHARE[1:]]):
        cage = [*unshare, sys.executable, __file__]
        try:
            if subprocess.run([*cage, "true"], capture_output=True, timeout=30).returncode == 0:
                return cage
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def flags(name: str, change: int | None = None) -> int:
    """An interface's flags; with `change`, those are set first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        if change is not None:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), change))
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
    return int(struct.unpack_from("h", answer, 16)[0])


def interfaces() -> list[str]:
    """Those that are up."""
    return [name for _, name in socket.if_nameindex() if flags(name) & IFF_UP]


def insist(others: Iterable[int] = ()) -> None:
    """Ends this program unless it is in a cage, and these processes in the same one."""
    if interfaces() != ["lo"]:
        sys.exit(f"not in a cage: {', '.join(interfaces())} would be listened on; start it with contain.py")
    here = os.readlink("/proc/self/ns/net")
    for pid in others:
        try:
            there = os.readlink(f"/proc/{pid}/ns/net")
        except FileNotFoundError:
            continue  # It has ended.
        if there != here:
            sys.exit(f"process {pid} is outside of the cage: its listeners can be reached")


def main() -> int:
    flags("lo", flags("lo") | IFF_UP)
    insist()
    return subprocess.call(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
