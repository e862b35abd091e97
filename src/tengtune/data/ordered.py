"""Work in threads whose results come in the order of the work."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

THREADS = 2
"""More would wait for each other: only encoding leaves Python's lock to the others."""


def ordered(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """`make` of each item in the items' order, a few of them at work at a time beside the caller."""
    workers = min(os.cpu_count() or 1, THREADS)
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(workers) as threads:
        for item in items:
            waiting.append(threads.submit(make, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
