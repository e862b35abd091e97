"""The machine: system, memory, disk."""

from __future__ import annotations

from collections.abc import Iterator

from tengtune.doctor.finding import Case, Finding, ok, unknown, warn
from tengtune.ui.lists import size

LOW_MEMORY = 8 * 10**9
LOW_DISK = 10 * 10**9
"""Less than this is little for any model that is worth a card."""


def check(case: Case) -> Iterator[Finding]:
    """All of it."""
    machine = case.host.machine
    yield ok(
        "doctor.machine",
        system=machine.system or "?",
        cpu=machine.cpu or "?",
        cores=machine.cores or "?",
        arch=machine.arch or "?",
        glibc=machine.glibc or "?",
        python=case.host.python.version or "?",
    )
    if machine.memory is None or machine.available is None:
        yield unknown("doctor.memory_unread")
    else:
        make = warn if machine.available < LOW_MEMORY else ok
        code = "doctor.memory_low" if machine.available < LOW_MEMORY else "doctor.memory"
        yield make(code, free=size(machine.available), total=size(machine.memory))
    if machine.disk_free is None or machine.disk_total is None:
        yield unknown("doctor.disk_unread")
    else:
        make = warn if machine.disk_free < LOW_DISK else ok
        code = "doctor.disk_low" if machine.disk_free < LOW_DISK else "doctor.disk"
        yield make(code, free=size(machine.disk_free), total=size(machine.disk_total))
