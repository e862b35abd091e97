"""HCCL's own settings for ranks on Ascend cards: what the library would choose otherwise ends trainings."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

CONNECT_S = 1200
"""HCCL_CONNECT_TIMEOUT: the vendor's value for trainings (120 by default); cards that still load a model come
late. It must be less than HCCL_EXEC_TIMEOUT."""
EXEC_S, MOST_EXEC_S = 1836, 17340
"""HCCL_EXEC_TIMEOUT by default, and the most that 910 and A2 take: so long a rank waits in a collective, as
for rank 0 while that evaluates."""
BASE_PORT, PORTS, LAST_PORT = 60000, 32, 65520
"""HCCL_IF_BASE_PORT by default, how many ports from there on a job takes, the last that may be the base."""


def can_bind(port: int) -> bool:
    """Whether nothing on this machine holds the TCP port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def variables(stall_s: float | None, free: Callable[[int], bool] = can_bind) -> dict[str, str]:
    """The variables of a job's ranks; what the user has set stands. Source: the vendor's documentation of
    HCCL's environment variables.

    stall_s: after how long a step counts as hung here; HCCL must not give up before. None: never.
    free: whether a port can be bound; a second job on the machine takes the next 32 ports.
    """
    patience = MOST_EXEC_S if stall_s is None else min(max(EXEC_S, int(stall_s) + 120), MOST_EXEC_S)
    wanted = {
        "HCCL_CONNECT_TIMEOUT": str(CONNECT_S),
        "HCCL_EXEC_TIMEOUT": str(patience),
        "HCCL_IF_BASE_PORT": str(_base_port(free)),
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def _base_port(free: Callable[[int], bool]) -> int:
    """The first of the usual ports from which on 32 are free; the default where none is."""
    for base in range(BASE_PORT, LAST_PORT + 1, PORTS):
        if all(free(port) for port in range(base, base + PORTS)):
            return base
    return BASE_PORT
