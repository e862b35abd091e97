"""The suite's own guard: no test, and no command that a test starts, reaches another machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.offline.sitecustomize import NetworkForbidden

ELSEWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""

TRIES: dict[str, Callable[[], object]] = {
    "connect": lambda: socket.create_connection((ELSEWHERE, 9), timeout=0.1),
    "connect_ex": lambda: socket.socket().connect_ex((ELSEWHERE, 9)),
    "datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (ELSEWHERE, 9)),
    "IPv6": lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 9)),
    "name": lambda: socket.getaddrinfo("hub.example", 443),
    "old name": lambda: socket.gethostbyname("hub.example"),
}


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", TRIES)
def test_this_process(way: str) -> None:
    with pytest.raises(NetworkForbidden):
        TRIES[way]()


IN_A_CHILD = """
import asyncio, socket, subprocess, sys, urllib.request
from sitecustomize import NetworkForbidden
here = socket.create_server(("127.0.0.1", 0))
with here, socket.create_connection(here.getsockname()):
    print("loopback")
for attempt in (
    lambda: socket.create_connection(("192.0.2.1", 9), timeout=0.1),
    lambda: urllib.request.urlopen("http://hub.example/", timeout=0.1),
    lambda: asyncio.run(asyncio.open_connection("192.0.2.1", 9)),
):
    try:
        attempt()
    except NetworkForbidden:
        print("forbidden")
if len(sys.argv) == 2:
    subprocess.run([sys.executable, *sys.orig_argv[1:-1], "grandchild", "last"], check=True)
"""


def test_every_python_that_is_started() -> None:
    command = [sys.executable, "-W", "ignore", "-c", IN_A_CHILD, "child"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loopback", "forbidden", "forbidden", "forbidden"] * 2


def test_a_command_of_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", "download", "Qwen/Qwen2.5-0.5B", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "NetworkForbidden" in done.stderr
