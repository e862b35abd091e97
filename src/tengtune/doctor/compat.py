"""Which versions go together: facts/compat/*.csv, read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tengtune import facts
from tengtune.host import releases
from tengtune.host.versions import Release

Row = dict[str, str]
Standing = Literal["pair", "listed", "newer", "older", "excluded", "off", "unknown"]
"""A released pair; on a list; newer or older than all named; excluded; of another pair; not known."""

TORCH_SINCE, MINDSPORE_SINCE = "2.1", "2.7"
"""The oldest of each that our back ends run on (pyproject.toml); they need Python 3.10, too."""
LISTS_ARE_WHOLE = "8.5.0"
"""From this CANN on the published lists of drivers are complete: what they leave out below is out."""


@dataclass(frozen=True)
class Verdict:
    """How two versions stand to each other, and what the other should be."""

    standing: Standing
    wanted: str = ""


def table(name: str) -> tuple[Row, ...]:
    """The rows of facts/compat/<name>.csv."""
    return facts.rows(f"compat/{name}.csv")


def driver_for(cann: str, driver: str) -> Verdict:
    """How a driver stands to a CANN, by the published pairs and lists."""
    rows = [row for row in table("cann_driver") if releases.same(cann, row["cann"])]
    paired, accepted, excluded = (_words(rows, key) for key in ("paired", "accepted", "excluded"))
    wanted = " / ".join(paired or accepted)
    if _among(driver, excluded):
        return Verdict("excluded", wanted)
    if _among(driver, paired):
        return Verdict("pair", wanted)
    if _among(driver, accepted):
        return Verdict("listed", wanted)
    named = [word.lower().removesuffix(".x") for word in paired + accepted]
    before = [releases.older(driver, word) for word in named]
    if not named or None in before:
        return Verdict("unknown", wanted)
    if not any(before):
        return Verdict("newer", wanted)
    whole = bool(accepted) and releases.older(cann, LISTS_ARE_WHOLE) is False
    return Verdict("excluded" if whole and all(before) else "older", wanted)


def marks_differ(driver: Release, cann: Release) -> bool:
    """Whether driver and CANN, each by its own file, leave the other's mark out of those they work with."""
    if not (driver.mark and cann.mark and driver.marks and cann.marks):
        return False
    return driver.mark not in cann.marks and cann.mark not in driver.marks


def torch_npu(version: str) -> Row | None:
    """The row of a torch_npu."""
    plain = version.partition("+")[0]
    return next((row for row in table("torch_npu") if row["torch_npu"] == plain), None)


def cann_for_torch_npu(row: Row, cann: str) -> Verdict:
    """How a CANN stands to a torch_npu: its pair, or in the range that its release was announced with."""
    if not row["cann"]:
        return Verdict("unknown")
    if releases.same(cann, row["cann"]):
        return Verdict("pair", row["cann"])
    ranges = [each for each in table("torch_npu_cann") if releases.same(row["release"], each["release"])]
    inside = any(releases.within(cann, each["first"], each["last"]) for each in ranges)
    return Verdict("listed" if inside else "off", row["cann"])


def torch_npu_for(cann: str | None, torch: str | None) -> Row | None:
    """The newest torch_npu that is released for a CANN, else that was announced to work with it, and for a
    torch where one is named; none that our back end does not run on."""
    rows = [row for row in table("torch_npu") if torch in (None, row["torch"])]
    rows = [row for row in rows if not releases.older(row["torch"], TORCH_SINCE)]
    if cann is None:
        return next(iter(rows), None)
    standings = [(cann_for_torch_npu(row, cann).standing, row) for row in rows]
    return next((row for wanted in ("pair", "listed") for found, row in standings if found == wanted), None)


def mindspore(version: str) -> Row | None:
    """The row of a MindSpore."""
    plain = version.partition("+")[0]
    return next((row for row in table("mindspore") if releases.same(plain, row["mindspore"])), None)


def cann_for_mindspore(row: Row, cann: str) -> Verdict:
    """How a CANN stands to a MindSpore: its pair, or one that its own check at the start accepts."""
    plain = re.sub(r"[.-](alpha|beta)\.?\d+$", "", cann.lower())
    if not row["cann"]:
        return Verdict("unknown")
    if releases.same(plain, row["cann"]):
        return Verdict("pair", row["cann"])
    return Verdict("listed" if releases.among(plain, row["accepted"].split()) else "off", row["cann"])


def glibc_for(package: str, version: str) -> str | None:
    """The oldest glibc that a package's wheels take; None where that is not known."""
    for row in table("glibc"):
        if row["package"] == package and releases.within(
            version.partition("+")[0], row["first"], row["last"]
        ):
            return row["glibc"]
    return None


def _words(rows: list[Row], key: str) -> list[str]:
    return list(dict.fromkeys(word for row in rows for word in row[key].split()))


def _among(driver: str, patterns: list[str]) -> bool:
    """Whether a driver is one of those named, or a patch of one."""
    patch = any(driver.lower().startswith(f"{pattern.lower()}.") for pattern in patterns)
    return patch or releases.among(driver, patterns)
