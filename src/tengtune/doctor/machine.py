"""The machine: system, memory, disk."""

from __future__ import annotations

from collections.abc import Iterator

from tengtune.doctor.finding import Case, Finding, ok, unknown, warn
from tengtune.ui import language
from tengtune.ui.lists import size

LOW_MEMORY = 8 * 10**9
LOW_DISK = 10 * 10**9
"""Less than this is little for any model that is worth a card."""


def check(case: Case) -> Iterator[Finding]:
    """All of it."""
    machine = case.host.machine
    parts: list[str] = [each for each in (machine.system, machine.cpu) if each]
    parts += [language.say("doctor.cores", count=machine.cores)] if machine.cores else []
    parts += [machine.arch] if machine.arch else []
    named = {"glibc": machine.glibc, "Python": case.host.python.version}
    parts += [f"{name} {version}" for name, version in named.items() if version]
    if parts:
        yield ok("doctor.machine", parts=language.say("doctor.comma").join(parts))
    else:
        yield unknown("doctor.machine_unread")
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
