"""The cards' network ports, and the variables of HCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tengtune.doctor import compat
from tengtune.doctor.finding import Case, Finding, block, ok, unknown, warn
from tengtune.host import hccn
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem


def check(case: Case) -> Iterator[Finding]:
    """Ports matter most to several machines: there what is a warning on one blocks."""
    if not case.host.has_cards:
        return
    yield from _ports(case)
    yield from _nics(case)
    yield from _variables(case)


def several_machines(case: Case) -> bool:
    """Whether the run goes over several machines."""
    return case.recipe is not None and case.recipe.parallel.nodes > 1


def _ports(case: Case) -> Iterator[Finding]:
    ports = case.host.ports
    if isinstance(ports, Problem):
        yield warn("doctor.conf_wrong", where=ports.where, reason=ports.texts()["what"])
        return
    if ports is None or not ports:
        if several_machines(case):
            yield block("doctor.no_addresses", path=hccn.CONF)
        return
    for address, times in Counter(port.address for port in ports.values()).items():
        if times > 1:
            make = block if several_machines(case) else warn
            same = [card for card, port in ports.items() if port.address == address]
            yield make("doctor.address_twice", address=address, cards=joined(same))
    lacking = [card.number for card in case.host.cards if card.number not in ports]
    if lacking:
        make = block if several_machines(case) else warn
        yield make("doctor.addresses_lacking", cards=joined(lacking), card=lacking[0])
    else:
        yield ok("doctor.addresses", count=len(ports))


def _nics(case: Case) -> Iterator[Finding]:
    nics = case.host.nics
    make = block if several_machines(case) else warn
    for card, nic in nics.items():
        if nic.link == "DOWN":
            yield make("doctor.link_down", card=card)
        elif nic.link != "UP":
            yield unknown("doctor.link_unknown", card=card)
        elif nic.health not in (None, "Success"):
            yield make("doctor.net_health", card=card, health=nic.health)
    if nics and all(nic.link == "UP" for nic in nics.values()):
        yield ok("doctor.links", count=len(nics))
    switches = {nic.tls for nic in nics.values() if nic.tls}
    if len(switches) > 1:
        enabled = joined(str(card) for card, nic in nics.items() if nic.tls == "1")
        yield make("doctor.tls", cards=enabled, every=" ".join(map(str, nics)))


def _variables(case: Case) -> Iterator[Finding]:
    """HCCL's variables against their ranges, and those that do not go together."""
    environment = case.host.environment
    faults = 0
    for row in compat.table("hccl_env"):
        value = environment.get(row["name"])
        if value is not None and not _in_range(value, row["least"], row["most"]):
            faults += 1
            span = f"{row['least']} - {row['most'] or '...'}"
            yield warn("doctor.variable", name=row["name"], value=value, span=span, usual=row["default"])
    connect, execute = (
        environment.get("HCCL_CONNECT_TIMEOUT", "120"),
        environment.get("HCCL_EXEC_TIMEOUT", "1836"),
    )
    if connect.isdecimal() and execute.isdecimal() and 0 < int(execute) <= int(connect):
        faults += 1
        yield warn("doctor.timeouts", connect=connect, execute=execute)
    forced = environment.get("INF_NAN_MODE_FORCE_DISABLE") == "1"
    late = any(each and each.bf16 for each in case.host.generations)
    if environment.get("INF_NAN_MODE_ENABLE") == "0" and late and not forced:
        faults += 1
        yield block("doctor.inf_nan")
    chosen = [f"{name}={environment[name]}" for name in sorted(environment) if name.startswith("HCCL_")]
    if not faults:
        yield ok("doctor.variables" if chosen else "doctor.no_variables", chosen=joined(chosen))


def _in_range(value: str, least: str, most: str) -> bool:
    if not re.fullmatch(r"[0-9]{1,12}", value):
        return False
    return int(least) <= int(value) and (not most or int(value) <= int(most))
