"""Device nodes: are they there, may this user open them, and do the numbers in the shell fit them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tengtune.cards import VISIBLE
from tengtune.doctor.finding import Case, Finding, block, ok, unknown
from tengtune.host.nodes import CONTROL, Node
from tengtune.ui.lists import joined

GROUP = "HwHiAiUser"


def check(case: Case) -> Iterator[Finding]:
    """All of it; nothing where there is neither driver nor node."""
    host = case.host
    if not host.has_cards or (host.driver is None and not host.nodes):
        return
    cards = sorted(node.card for node in host.nodes if node.card is not None)
    lacking = [name for name in CONTROL if name not in {node.name for node in host.nodes}]
    if not cards or lacking:
        names = ([] if cards else ["davinci0"]) + lacking
        flags = " ".join(f"--device /dev/{name}" for name in names)
        code = "doctor.nodes_not_mapped" if host.container else "doctor.nodes_missing"
        yield block(code, names=joined(names), flags=flags)
    yield from _permission(case, len(cards))
    yield from _visible(case, cards)


def _permission(case: Case, cards: int) -> Iterator[Finding]:
    user, nodes = case.host.user, case.host.nodes
    allowed = [user.may_use(node) for node in nodes]
    refused = [node for node, may in zip(nodes, allowed, strict=True) if may is False]
    if refused:
        yield _refused(case, refused)
    elif nodes and all(allowed):
        yield ok("doctor.nodes", cards=cards, user=user.name or "?")
    elif nodes:
        yield unknown("doctor.nodes_unknown")


def _refused(case: Case, refused: list[Node]) -> Finding:
    """Which of the two it is: the user lacks the group, or no group would help."""
    user = case.host.user.name or "$USER"
    more = ["..."] if len(refused) > 4 else []
    names = joined([*(node.name for node in refused[:4]), *more])
    first = refused[0]
    mode = f"{first.mode} {first.owner}:{first.group}"
    helps = first.group not in ("root", None) and (first.mode or "")[3:5] == "rw"
    code = "doctor.not_in_group" if helps else "doctor.nodes_closed"
    return block(code, user=user, names=names, mode=mode, group=first.group if helps else GROUP)


def _visible(case: Case, cards: list[int]) -> Iterator[Finding]:
    """The variable counts what this shell or container sees, from 0; on the host that is the same."""
    value = case.host.environment.get(VISIBLE)
    if value is None or not cards:
        return
    words = [word.strip() for word in value.split(",") if word.strip()]
    bad = [word for word in words if not re.fullmatch(r"[0-9]{1,4}", word) or int(word) >= len(cards)]
    every = ",".join(map(str, range(len(cards))))
    if bad or not words:
        yield block("doctor.visible", name=VISIBLE, value=value, count=len(cards), every=every)


def visible(case: Case) -> list[int] | None:
    """The cards a run would take, by number, in their order; None for all."""
    value = case.host.environment.get(VISIBLE)
    if value is None:
        return None
    return [int(word) for word in value.split(",") if re.fullmatch(r"\s*[0-9]{1,4}\s*", word)]
