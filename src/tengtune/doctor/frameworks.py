"""PyTorch with torch_npu, and MindSpore: do they go with CANN, Python, the machine, the C library."""

from __future__ import annotations

from collections.abc import Iterator

from tengtune.doctor import compat
from tengtune.doctor.finding import Case, Finding, block, ok, unknown, warn
from tengtune.host import releases
from tengtune.host.packages import Package
from tengtune.ui import language
from tengtune.ui.lists import joined


def check(case: Case) -> Iterator[Finding]:
    """All of it; what hangs on a card is left out where there is none."""
    packages = case.host.python.packages
    python = case.host.python.version
    if not {"torch", "mindspore"} & packages.keys():
        yield warn("doctor.no_framework", python=python or "?")
    if torch := packages.get("torch"):
        yield from _torch(case, torch, packages.get("torch_npu"))
    if found := packages.get("mindspore"):
        yield from _mindspore(case, found)
    for package in packages.values():
        yield from _build(case, package)


def _cann(case: Case) -> str | None:
    return case.host.cann.version if case.host.cann else None


def _torch(case: Case, torch: Package, npu: Package | None) -> Iterator[Finding]:
    """torch against torch_npu against CANN against Python."""
    plain = torch.version.partition("+")[0]
    if npu is None:
        if case.host.has_cards:
            yield _no_torch_npu(case, plain)
        else:
            yield ok("doctor.torch_alone", torch=torch.version)
        return
    row = compat.torch_npu(npu.version)
    wanted = row["torch"] if row else npu.torch
    values = {"npu": npu.version, "torch": torch.version, "wanted": wanted or "?"}
    if wanted is None:
        yield unknown("doctor.torch_npu_unknown", **values)
    elif releases.base(plain) != releases.base(wanted):
        fitting = compat.torch_npu_for(_cann(case), plain)
        if fitting:
            yield block("doctor.torch_other", **values, fitting=fitting["torch_npu"], plain=plain)
        else:
            yield block("doctor.torch_other_alone", **values)
    elif row is None:
        yield unknown("doctor.torch_npu_unknown", **values)
    else:
        yield from _torch_npu(case, npu, torch, row)


def _no_torch_npu(case: Case, torch: str) -> Finding:
    """What to install beside a torch, or in its place; nothing where none goes with the CANN that is here."""
    cann = _cann(case)
    if row := compat.torch_npu_for(cann, torch):
        return warn("doctor.no_torch_npu", torch=torch, npu=row["torch_npu"])
    if row := compat.torch_npu_for(cann, None):
        return warn("doctor.no_torch_npu_for", torch=torch, other=row["torch"], npu=row["torch_npu"])
    row = compat.torch_npu_for(None, torch)
    wanted = row["cann"] if row and row["cann"] else language.say("doctor.newer_cann")
    return warn("doctor.no_torch_npu_at_all", torch=torch, cann=cann, wanted=wanted)


def _torch_npu(case: Case, npu: Package, torch: Package, row: compat.Row) -> Iterator[Finding]:
    cann = _cann(case)
    values = {"npu": npu.version, "torch": torch.version, "cann": cann or "?", "wanted": row["cann"]}
    if cann is None:
        yield unknown("doctor.torch_without_cann", **values)
    else:
        verdict = compat.cann_for_torch_npu(row, cann)
        fitting = compat.torch_npu_for(cann, row["torch"]) or compat.torch_npu_for(cann, None)
        if verdict.standing == "pair":
            yield ok("doctor.torch_pair", **values)
        elif verdict.standing == "listed":
            yield ok("doctor.torch_listed", **values)
        elif verdict.standing == "off" and fitting:
            install = f"torch=={fitting['torch']} torch_npu=={fitting['torch_npu']}"
            yield warn("doctor.torch_off", **values, install=install)
        elif verdict.standing == "off":
            yield warn("doctor.torch_off_cann", **values)
        else:
            yield unknown("doctor.torch_cann_unknown", **values)
    yield from _python(case, f"torch_npu {npu.version}", row["python"])
    for generation in filter(None, case.host.generations):
        if _after(row["release"], generation.last_torch_npu):
            last = f"TorchNPU {generation.last_torch_npu}"
            names = {"package": f"torch_npu {npu.version}", "generation": generation.name}
            yield unknown("doctor.framework_after", **names, last=last)


def _mindspore(case: Case, package: Package) -> Iterator[Finding]:
    """MindSpore against CANN against Python."""
    if not case.host.has_cards:
        yield ok("doctor.mindspore_alone", mindspore=package.version)
        return
    after = [g for g in case.host.generations if g and _after(package.version, g.last_mindspore)]
    if after:  # which CANN it wants would be the lesser trouble
        names = joined(each.name for each in after)
        values = {"last": after[0].last_mindspore, "since": compat.MINDSPORE_SINCE}
        yield unknown("doctor.mindspore_after", mindspore=package.version, generation=names, **values)
        return
    cann, row = _cann(case), compat.mindspore(package.version)
    values = {"mindspore": package.version, "cann": cann or "?", "wanted": row["cann"] if row else "?"}
    if row is None or cann is None:
        yield unknown("doctor.mindspore_unknown", **values)
    else:
        standing = compat.cann_for_mindspore(row, cann).standing
        if standing == "pair":
            yield ok("doctor.mindspore_pair", **values)
        elif standing == "listed":
            yield ok("doctor.mindspore_listed", **values)
        elif standing == "off":
            yield warn("doctor.mindspore_off", **values)
        else:
            yield unknown("doctor.mindspore_unknown", **values)
    if row:
        yield from _python(case, f"MindSpore {package.version}", row["python"])
        yield from _libstdcxx(case, package, row["glibcxx_x86_64"])


def _after(version: str, last: str | None) -> bool:
    """Whether a version is newer than the newest named; one that cannot be told from it counts as newer."""
    return last is not None and releases.older(last, version) is not False


def _python(case: Case, package: str, versions: str) -> Iterator[Finding]:
    python = case.host.python.version
    if python and versions and python not in versions.split():
        wanted = versions.split()[-1]
        yield block("doctor.python", python=python, package=package, versions=versions, wanted=wanted)


def _build(case: Case, package: Package) -> Iterator[Finding]:
    """Whether a package's libraries are for this machine and its C library."""
    machine = case.host.machine
    values = {"package": package.name, "version": package.version}
    if package.machine and machine.arch and package.machine != machine.arch:
        yield block("doctor.machine_type", **values, built=package.machine, machine=machine.arch)
    wanted = compat.glibc_for(package.name, package.version)
    if wanted and machine.glibc and releases.older(machine.glibc, wanted):
        yield block("doctor.glibc_old", **values, glibc=machine.glibc, wanted=wanted)


def _libstdcxx(case: Case, package: Package, wanted: str) -> Iterator[Finding]:
    """MindSpore's x86 wheels carry no libstdc++, and pip does not look whether the system's is new enough."""
    machine = case.host.machine
    if wanted and machine.arch == "x86_64" and machine.glibcxx and releases.older(machine.glibcxx, wanted):
        values = {"version": package.version, "wanted": wanted, "found": machine.glibcxx}
        yield block("doctor.libstdcxx", **values)
