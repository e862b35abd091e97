"""Driver, firmware, CANN and its operators: are they there, do they go together, does this shell see them."""

from __future__ import annotations

from collections.abc import Iterator

from tengtune.doctor import compat
from tengtune.doctor.finding import Case, Finding, block, chip_part, ok, unknown, warn
from tengtune.host import releases
from tengtune.host.versions import Cann, Release
from tengtune.ui.lists import joined

OPS_SINCE = "8.5.0"
"""From this CANN on the package of compiled operators is called ops, and version.cfg need not name it."""


def check(case: Case) -> Iterator[Finding]:
    """All of it; nothing where there are no cards."""
    if not case.host.has_cards:
        return
    yield from _driver(case)
    yield from _firmware(case)
    cann = case.host.cann
    if cann is None or cann.version is None:
        chip = chip_part(case)
        yield (block if cann is None else unknown)("doctor.no_cann", chip=chip, arch=case.arch)
        return
    yield from _pair(case, cann, cann.version)
    yield from _kernels(case, cann, cann.version)
    yield from _shell(case, cann)


def _release(case: Case) -> Release | None:
    """The driver by its file, else by the head of npu-smi's table; None where neither speaks of one."""
    host = case.host
    if host.driver and host.driver.version:
        return host.driver
    told = host.table.driver_version
    return Release("npu-smi info", told) if told and host.cards else host.driver


def _driver(case: Case) -> Iterator[Finding]:
    host, driver = case.host, _release(case)
    if driver is not host.driver and driver:
        path = f"{host.driver_root}/driver/version.info"
        yield warn("doctor.driver_by_smi", driver=driver.version, path=path)
    elif host.driver is None:
        code = "doctor.no_driver_mounted" if host.container else "doctor.no_driver"
        yield block(code, root=host.driver_root, arch=case.arch)
    elif host.driver.version is None:
        yield unknown("doctor.driver_unread", path=host.driver.path)


def _firmware(case: Case) -> Iterator[Finding]:
    """Driver against firmware: by npu-smi's own verdict and by the range in the driver's file."""
    host, driver = case.host, _release(case)
    if driver is None or driver.version is None:
        return
    boards = [card.board for card in host.cards if card.board]
    firmware = host.firmware.version if host.firmware else None
    firmware = firmware or next((board.firmware for board in boards if board.firmware), None)
    values = {"driver": driver.version, "firmware": firmware or "?"}
    bounds = driver.firmware
    inside = releases.within(firmware, *bounds) if firmware and bounds else None
    span = f"{bounds[0]} - {bounds[1]}" if bounds else "?"
    if inside is False or any(board.compatible is False for board in boards):
        yield block("doctor.firmware_out", **values, span=span)
    elif inside or (boards and all(board.compatible for board in boards)):
        yield ok("doctor.firmware", **values)
    else:
        yield unknown("doctor.firmware_unknown", **values)


def _pair(case: Case, cann: Cann, version: str) -> Iterator[Finding]:
    """Driver against CANN, CANN against the machine and the cards."""
    host, driver = case.host, _release(case)
    if driver and driver.version:
        yield _standing(case, cann, version, driver, driver.version)
    else:
        yield unknown("doctor.cann_alone", cann=version, home=cann.home)
    machine = host.machine.arch
    if machine and cann.release.arch and cann.release.arch != machine:
        yield block("doctor.cann_arch", arch=cann.release.arch, machine=machine, home=cann.home)
    for generation in host.generations:
        last = generation.last_cann if generation else None
        if generation and last and releases.older(last, version) is not False:
            yield unknown("doctor.cann_after", generation=generation.name, cann=version, last=last)


def _standing(case: Case, cann: Cann, version: str, driver: Release, number: str) -> Finding:
    """Driver against CANN. A pair that no list names is unknown, and so is one that only its files' own marks
    speak against: what the marks mean is documented nowhere."""
    verdict = compat.driver_for(version, number)
    wanted = verdict.wanted
    file = wanted.partition(" / ")[0].replace(".X", ".*")
    package = f"Ascend-hdk-{chip_part(case)}-npu-driver_{file}_linux-{case.arch}.run"
    values = {"driver": number, "cann": version, "wanted": wanted, "package": package}
    if verdict.standing == "pair":
        return ok("doctor.driver_pair", **values)
    if verdict.standing == "listed":
        return ok("doctor.driver_listed", **values)
    if verdict.standing == "excluded":
        return block("doctor.driver_excluded", **values)
    if verdict.standing == "older":
        return warn("doctor.driver_older", **values)
    if compat.marks_differ(driver, cann.release):
        return unknown("doctor.driver_marks", driver=number, cann=version, path=driver.path)
    if verdict.standing == "newer":
        return ok("doctor.driver_newer", **values)
    return unknown("doctor.driver_unknown", **values)


def _kernels(case: Case, cann: Cann, version: str) -> Iterator[Finding]:
    """The compiled operators of the cards' generation."""
    wanted = sorted({each.kernels for each in case.host.generations if each and each.kernels})
    old = releases.older(version, OPS_SINCE)
    chip = chip_part(case)
    kind = f"kernels-{chip}" if old else f"{chip}-ops"
    package = f"Ascend-cann-{kind}_{version}_linux-{case.arch}.run"
    values = {"package": package, "home": cann.home, "wanted": joined(wanted) or "?"}
    if cann.kernels:
        missing = [name for name in wanted if name not in cann.kernels]
        if not wanted:
            yield unknown("doctor.kernels_unknown", **values)
        elif missing:
            yield block("doctor.kernels_other", **values, found=joined(cann.kernels))
        else:
            yield ok("doctor.kernels", found=joined(wanted))
    elif cann.config and not cann.config.kernels and old:
        yield block("doctor.kernels_missing", **values)
    else:
        yield unknown("doctor.kernels_unknown", **values)


def _shell(case: Case, cann: Cann) -> Iterator[Finding]:
    """set_env.sh: without it no framework finds CANN's libraries."""
    if case.host.sourced:
        yield ok("doctor.sourced", home=cann.home)
    else:
        yield block("doctor.not_sourced", home=cann.home, script=cann.set_env or f"{cann.home}/set_env.sh")
