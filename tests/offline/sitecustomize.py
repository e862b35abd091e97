"""No connection leaves this machine; loopback is allowed (ranks talk over it, stand-ins for hubs answer).

Python imports a module of this name when it starts, from PYTHONPATH, which conftest.py sets: so the guard
holds for the tests' own process and for every Python that they start. An audit hook sees what any module
does through sockets, and loads none.
"""

from __future__ import annotations

import os
import sys
from typing import Any


class NetworkForbidden(RuntimeError):
    """A test tried to reach another machine."""


def _is_local(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if not isinstance(host, str):
        return True  # no host at all, or not the Internet's family
    return host in ("localhost", "::1", "", os.uname().nodename) or host.startswith("127.")


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: NetworkForbidden for a connection, a datagram or a name of another machine."""
    if not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise NetworkForbidden(f"{event} {address}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_local(arguments[0]):
        raise NetworkForbidden(f"{event} {arguments[0]}")


sys.addaudithook(guard)
