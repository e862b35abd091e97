"""Markup with escaping in one place: whatever is not Html is text and cannot become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

from tengtune.ui import language

_VOID = frozenset(("br", "meta", "input", "path", "line", "polygon"))


class Html(str):
    """Markup as it is written into the page."""

    __slots__ = ()


Content = object
"""Html; text or a number, which is escaped; None, which is left out; or a list of these."""


def tag(name: str, /, *content: Content, **attributes: object) -> Html:
    """An element. Attribute names: `class_` is class, `view_box` is view-box; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>" if name in ("br", "meta", "input") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def join(content: Iterable[Content]) -> Html:
    """The parts one after the other, escaped where they are text."""
    return Html("".join(map(_markup, content)))


def _markup(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content
    if isinstance(content, (list, tuple)):
        return join(content)
    return html.escape(str(content))


def say(code: str, **values: object) -> Html:
    """The message in both languages; style.css shows one of them."""
    entry = language.area_messages(code.split(".", 1)[0])[code]
    return join(tag("span", language.fill(entry[name], values), lang=name) for name in ("zh", "en"))
