"""In a task: whether an address that user code says is that of the cluster which the task is part of.

One cluster has many addresses: a socket for its own machine, names and numbers for others, and what forwards
to those. So whoever names another one is warned, and goes on in the one that there is.
"""

from __future__ import annotations

import contextlib
import warnings

from marline import _native
from marline._errors import MarlineError

_LOOPBACK = ("127.", "localhost:", "[::1]:")


def warn_of_other(what: str, address: str | None, home: tuple[str, str | None]) -> None:
    """A warning if this seems to be the address of another cluster."""
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
        # A machine may have several names, and the cluster one port.
        return address.rpartition(":")[2] != home.rpartition(":")[2]
    if is_socket:
        return is_home_socket
    # A worker next to its controller joins by a socket. Whether a name of this machine means that controller
    # is not known, unless it is one for clusters that run here: they are known.
    return is_embedded or address.startswith(_LOOPBACK)


def _nearest(address: str) -> str:
    """The socket of a cluster that runs on this machine, or its address."""
    with contextlib.suppress(MarlineError):
        found = _native.Session.here(address)
        return address if found is None else found[0]
    return address
