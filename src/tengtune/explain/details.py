"""What can be computed from the lines around an error: figures of memory, missing ranks or packages.

Each function takes the lines that tell of one error and gives a Detail, or None where they do not say
enough. The texts are in ui/messages/explain.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tengtune.explain.scan import Hit
from tengtune.ui.lists import listed

UNITS = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}
_SIZE = r"([\d.]+) ?(B|KiB|MiB|GiB|TiB)"
_MEMORY = {
    "tried": (rf"Tried to allocate {_SIZE}",),
    "total": (rf"{_SIZE} total capacity", rf"total capacity of {_SIZE}"),
    "allocated": (rf"{_SIZE} already allocated", rf"{_SIZE} is allocated by PyTorch"),
    "free": (rf"{_SIZE} (?:is )?free",),
    "reserved": (rf"{_SIZE} reserved in total",),
    "unused": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
}
_PEERS = (
    r"[Rr]emote rank:? ?\[(\d{1,6})\]",
    r"[Ww]aiting peer rank: ?\[?(\d{1,6})\b",
    r"remoteUserrank\[(\d{1,6})\]",
    r"\|\s*[\da-fA-F.:]+\((\d{1,6})\)\s*\|[^|\n]*\|[^|\n]*\|[^|\n]*\|[^|\n]*\|\s*time ?out",
    r"\b[Ww]orker (\d{1,6}) is the first one timed out|The node: (\d{1,6}) is timed out",
)
"""How an error names the rank that it waited for: HCCL's time-outs, its lines on links (a row of the table
begins with the far end), MindSpore's scheduler."""
_OWN = r"localUserrank\[(\d{1,6})\]|\brankI[dD]\[(\d{1,6})\]"
_LIST = r"Timed out node list is: (?:\[const vector\])?\{([\d, ]{1,400})\}"
_MODULE = r"No module named \W{0,3}(\w[\w.]*)"
PACKAGES = {
    "absl": "absl-py",
    "attr": "attrs",
    "google.protobuf": "protobuf",
    "ml_dtypes": "ml-dtypes",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose package has another name."""
SHARE = 0.1
"""Part of a card's memory that is too much to be a matter of rounding."""
OVERHEAD = 4 << 30
"""Bytes that CANN and HCCL may take beside PyTorch's pool."""


@dataclass(frozen=True)
class Detail:
    """`code`: its text {means, fix}, with `values` filled in; the fix replaces the error's own. data: for
    programs."""

    code: str
    values: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


def detail_of(hits: Sequence[Hit]) -> Detail | None:
    """What the lines of one error say beyond it; hits: one or more, the first is the diagnosis."""
    error = hits[0].error
    return DETAILS[error.detail](hits) if error and error.detail else None


def memory(hits: Sequence[Hit]) -> Detail | None:
    """Who holds the card's memory: pieces nobody can use, this process, or another one."""
    text = " ".join(hits[0].around.split())
    sizes = {name: size for name, forms in _MEMORY.items() if (size := _size(forms, text)) is not None}
    if "unused" in sizes and "allocated" in sizes:
        sizes["reserved"] = sizes["allocated"] + sizes.pop("unused")
    if not {"total", "allocated", "reserved"} <= set(sizes) or not sizes["total"]:
        return None
    total, allocated, reserved = sizes["total"], sizes["allocated"], sizes["reserved"]
    tried, free = sizes.get("tried", 0), sizes.get("free")
    idle = reserved - allocated
    other = total - reserved - free if free is not None else 0
    if other > max(OVERHEAD, SHARE * total):
        cause = "other_process"
    elif idle >= max(tried, SHARE * total):
        cause = "fragmentation"
    else:
        cause = "full"
    gib = {name: f"{size / 2**30:.2f} GiB" for name, size in sizes.items()}
    values = {"tried": "?", **gib, "idle": f"{idle / 2**30:.2f} GiB", "other": f"{other / 2**30:.2f} GiB"}
    return Detail(f"explain.memory_{cause}", values, {"cause": cause, **sizes})


def missing_ranks(hits: Sequence[Hit]) -> Detail | None:
    """The ranks that are not in HCCL's list of those that came."""
    text = hits[0].around
    count = re.search(r"rankNum is \[(\d{1,6})\]", text)
    lists = re.findall(r"connected rankinfo\[LINE \d+\]:([^\n]*)", text)
    if not count or not lists:
        return None
    came = {int(number) for each in lists for number in re.findall(r"\[(\d+)\]", each)}
    missing = [rank for rank in range(int(count[1])) if rank not in came]
    if not missing or not came <= set(range(int(count[1]))):
        return None
    values = {"count": len(missing), "total": count[1], "ranks": listed(missing)}
    return Detail("explain.missing_ranks", values, {"missing": missing})


def collectives(hits: Sequence[Hit]) -> Detail | None:
    """Whether the ranks stood in the same collective."""
    calls: dict[str, str] = {}
    for hit in hits:
        tag = re.search(r"\btag\[([A-Za-z]+)_", hit.text)
        rank = re.search(r"\brankId\[(\d+)\]", hit.around)
        if tag and (rank or hit.rank is not None):
            calls.setdefault(rank[1] if rank else str(hit.rank), tag[1])
    if len(set(calls.values())) < 2 and (named := absent(hits)):
        return named
    if len(calls) < 2:
        return None
    told = [f"rank {rank}: {call}" for rank, call in sorted(calls.items(), key=lambda each: int(each[0]))]
    code = "explain.same_collective" if len(set(calls.values())) == 1 else "explain.other_collectives"
    return Detail(code, {"calls": listed(told)}, {"collectives": calls})


def absent(hits: Sequence[Hit]) -> Detail | None:
    """The ranks that those who waited name."""
    ranks = absent_ranks(hits)
    if not ranks:
        return None
    code = "explain.absent_rank" if len(ranks) == 1 else "explain.absent_ranks"
    return Detail(code, {"ranks": listed(ranks)}, {"absent": ranks})


def absent_ranks(hits: Sequence[Hit]) -> list[int]:
    """The ranks that these lines wait for, less those that wait themselves. None where several are named by
    ranks that do not say which they are: in a ring each names the next one."""
    waited, waiting, unnamed = set[int](), set[int](), False
    for hit in hits:
        named = _numbers(_PEERS, hit.around) | _numbers((r"\d{1,6}",), *re.findall(_LIST, hit.around))
        if missing := missing_ranks([hit]):
            named |= set(missing.data["missing"])
        own = _numbers((_OWN,), hit.around) | ({hit.rank} if hit.rank is not None else set())
        if named:
            waited |= named
            waiting |= own
            unnamed = unnamed or not (own or missing or re.search(_LIST, hit.around))
    absent = sorted(waited - waiting)
    return [] if unnamed and len(absent) > 1 else absent


def location(hits: Sequence[Hit]) -> Detail | None:
    """Where HCCL sees the fault, for those who only noticed it."""
    found = re.search(r"Cluster Exception Location\[[^\]]*\]:\s*\[([^\]]+)\]", hits[0].around)
    if not found:
        return None
    address, _, device = found[1].rpartition("/")
    return Detail("explain.location", {"address": address, "device": device}, {"location": found[1]})


def module(hits: Sequence[Hit]) -> Detail | None:
    """The package that is missing. None for a part of a package: that may be there, in another version."""
    found = re.search(_MODULE, hits[0].around)
    name = found[1].rstrip(".") if found else ""
    package = PACKAGES.get(name, name)
    if not package or "." in package:
        return None
    return Detail("explain.module", {"module": name, "package": package}, {"module": name})


DETAILS: Mapping[str, Callable[[Sequence[Hit]], Detail | None]] = {
    "memory": memory,
    "missing_ranks": missing_ranks,
    "collectives": collectives,
    "location": location,
    "absent": absent,
    "module": module,
}


def _numbers(forms: Sequence[str], *texts: str) -> set[int]:
    """The numbers in the places that these forms have for one."""
    matches = (each for form in forms for text in texts for each in re.finditer(form, text))
    return {int(number) for each in matches for number in each.groups() or each.group(0).split() if number}


def _size(forms: Sequence[str], text: str) -> int | None:
    """Bytes, of the first form that is there."""
    for form in forms:
        if match := re.search(form, text):
            try:
                return int(float(match[1]) * 1024 ** UNITS[match[2]])
            except (ValueError, OverflowError):
                return None
    return None
