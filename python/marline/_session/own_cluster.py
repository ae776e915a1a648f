"""Compares an address that a task passes with the address of the task's own cluster.

One cluster has many addresses: a socket on its own machine, names and numbers for other machines,
and forwarded ports. So a different address is only a warning: the task stays in its own cluster.
"""

from __future__ import annotations

import contextlib
import warnings

from marline import _native
from marline._api.errors import MarlineError

_LOOPBACK = ("127.", "localhost:", "[::1]:")


def warn_of_other(what: str, address: str | None, home: tuple[str, str | None]) -> None:
    """Warns if ``address`` seems to be that of another cluster than ``home``, the task's own."""
    if address is None or address in ("local", "auto"):
        return
    if _is_other(address.removeprefix("http://"), home[0].removeprefix("http://"), home[1] is None):
        words = f"{what}({address!r}) in a task changes nothing: it is part of the cluster at {home[0]!r}"
        warnings.warn(f"{words}. Leave the address out", stacklevel=4)


def _is_other(address: str, home: str, is_embedded: bool) -> bool:
    if _nearest(address) == _nearest(home):
        return False
    is_socket, is_home_socket = address.startswith("unix:"), home.startswith("unix:")
    if not is_socket and not is_home_socket:
        # A machine may have several names, but the cluster has one port.
        return address.rpartition(":")[2] != home.rpartition(":")[2]
    if is_socket:
        return is_home_socket
    # A worker beside its controller joins by a socket. A name of this machine may or may not mean
    # that controller, so it is not reported. An embedded cluster has no port: any address is
    # another cluster. So is a loopback address, since the clusters on this machine were looked up
    # before.
    return is_embedded or address.startswith(_LOOPBACK)


def _nearest(address: str) -> str:
    """Returns the socket of the local cluster with this address, or else the address."""
    with contextlib.suppress(MarlineError):
        found = _native.Session.find_local_cluster(address)
        return address if found is None else found[0]
    return address
