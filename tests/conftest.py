"""For the whole suite: no network, one language, few threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.update(
    TENGTUNE_LANG="en", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="true"
)
# Tiny tensors: a second thread gives nothing, and on a busy machine it waits for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class NetworkForbidden(RuntimeError):
    """A test tried to reach another machine."""


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    return str(address[0]) in ("localhost", "::1", "") or str(address[0]).startswith("127.")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Connections leave this machine in no test; loopback is allowed (ranks talk over it)."""
    connect, connect_ex, resolve = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            raise NetworkForbidden(f"connect to {address}")
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if not _is_local(address):
            raise NetworkForbidden(f"connect to {address}")
        return connect_ex(self, address)

    def guarded_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None and not _is_local((host,)) and host != socket.gethostname():
            raise NetworkForbidden(f"resolve {host}")
        return resolve(host, *args, **kwargs)

    socket.socket.connect = guarded_connect  # type: ignore[method-assign]
    socket.socket.connect_ex = guarded_connect_ex  # type: ignore[method-assign]
    socket.getaddrinfo = guarded_resolve  # type: ignore[assignment]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.socket.connect_ex = connect_ex  # type: ignore[method-assign]
    socket.getaddrinfo = resolve
