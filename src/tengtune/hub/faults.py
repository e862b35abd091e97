"""What can be wrong with a model on a hub, as Problems: the same for every hub."""

from __future__ import annotations

import os

from tengtune.hub.base import Hub, innermost
from tengtune.models import hub_id
from tengtune.ui import language
from tengtune.ui.lists import joined, listed
from tengtune.ui.problems import FAILED_RUN, Problem

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def bad_id(text: str) -> Problem:
    """`text` is no hub id."""
    return Problem("download.bad_id", where=text, near=suggestion(text))


def no_model(hub: Hub, repo: str, token: str) -> Problem:
    """The hub has no such model, or does not show it to this user."""
    return Problem("download.no_model", where=hub.endpoint, model=repo, near=suggestion(repo), token=token)


def no_revision(hub: Hub, repo: str, revision: str, known: list[str]) -> Problem:
    """The model has no such revision; `known` are those it has, where the hub tells."""
    names = listed(known) or hub.revision or "-"
    return Problem("download.no_revision", where=hub.endpoint, model=repo, revision=revision, known=names)


def no_file(hub: Hub, repo: str, file: str) -> Problem:
    """The hub lists a file and does not have it."""
    return Problem("download.no_file", where=hub.endpoint, exit_code=FAILED_RUN, model=repo, file=file)


def denied(hub: Hub, repo: str, status: int | None, token: str) -> Problem:
    """The model is there, but not for this user."""
    return Problem("download.denied", where=hub.endpoint, model=repo, status=status, token=token)


def refused(hub: Hub, status: int | None) -> Problem:
    """The hub refuses the request as such."""
    return Problem("download.refused", where=hub.endpoint, exit_code=FAILED_RUN, status=status)


def bad_answer(hub: Hub, error: Exception) -> Problem:
    """What answers is not the hub, or speaks otherwise than it should."""
    return Problem("download.bad_answer", where=hub.endpoint, exit_code=FAILED_RUN, reason=innermost(error))


def offline_mode(hub: Hub, variable: str) -> Problem:
    """The environment forbids the client to use the network."""
    return Problem("download.offline_mode", where=hub.endpoint, variable=variable)


def unreachable(hub: Hub, reason: str) -> Problem:
    """Nothing useful comes from the hub's address."""
    proxy = next((name for name in PROXIES if os.environ.get(name)), None)
    told = language.say("download.proxy_used", name=proxy) if proxy else language.say("download.no_proxy")
    return Problem(
        "download.unreachable", where=hub.endpoint, exit_code=FAILED_RUN, reason=reason, proxy=told
    )


def suggestion(text: str) -> str:
    """The known models that look like `text`, as a sentence; nothing where none does."""
    found = [name for name in hub_id.nearest(text) if name.lower() != text.lower()]
    return language.say("download.near", names=joined(found)) if found else ""
