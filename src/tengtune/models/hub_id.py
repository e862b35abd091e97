"""Hub ids (`owner/name`): telling them from paths, and the known Qwen models for a typo's nearest match."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path

from tengtune import facts

MODELS = "models"
"""The folder downloads go to unless another is named; never the owner in an id."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_SUFFIXES = {
    "qwen1": ("", "-Chat"),
    "qwen1.5": ("", "-Chat"),
    "qwen2": ("", "-Instruct"),
    "qwen2.5": ("", "-Instruct"),
    "qwen3": ("", "-Base"),
}
"""How a family's base and chat models are called: no suffix is the base model, for Qwen3 the chat model."""

_CODER = ("0.5B", "1.5B", "3B", "7B", "14B", "32B")
SAME_SHAPE = {
    **{f"Qwen2.5-Coder-{size}{kind}": f"Qwen2.5-{size}" for size in _CODER for kind in ("", "-Instruct")},
    "QwQ-32B": "Qwen2.5-32B",
    "QwQ-32B-Preview": "Qwen2.5-32B",
    "Qwen3-4B-Instruct-2507": "Qwen3-4B",
    "Qwen3-4B-Thinking-2507": "Qwen3-4B",
}
"""Models whose weights have the shapes of one in facts/models.csv, as far as a plan goes. Length, theta and
eps may be others: those are read from the model's config.json."""


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form owner/name."""
    return bool(_ID.fullmatch(text)) and not text.startswith(f"{MODELS}/") and ".." not in text


def hub_id_in(path: str, beside: Path) -> str | None:
    """The hub id a run file's model.path is, if it is one and not a path.

    A path wins over an id wherever its first part exists beside the run file: a misspelt folder must not
    cause a download.
    """
    return path if is_hub_id(path) and not (beside / path.split("/")[0]).exists() else None


def full_id(text: str) -> str:
    """The id of the known model whose name `text` is, with or without its owner and as `joined` has it; else
    `text`."""
    wanted = joined(text.lower().removeprefix("qwen/"))
    return next((known for known in known_ids() if joined(known.split("/")[1]) == wanted), text)


def joined(name: str) -> str:
    """A model's name in small letters, without what joins its parts, but for the point of a number, which
    some write as _: one for Qwen-14B, Qwen14B and qwen_14b."""
    return re.sub(r"[-_ ]", "", re.sub(r"(?<=\d)_(?=\d)", ".", name.lower()))


@functools.cache
def known_ids() -> tuple[str, ...]:
    """The ids of the Qwen models in facts/models.csv, base and chat, and of those with the same shapes."""
    rows = facts.rows("models.csv")
    own = [f"{row['name']}{suffix}" for row in rows for suffix in _SUFFIXES[row["family"]]]
    return tuple(f"Qwen/{name}" for name in (*own, *SAME_SHAPE))


def nearest(text: str) -> list[str]:
    """At most three known ids that look like `text`, the likeliest first."""
    names = {known.split("/")[1].lower(): known for known in known_ids()}
    wanted = text.split("/")[-1].lower()
    return [names[name] for name in difflib.get_close_matches(wanted, list(names), n=3, cutoff=0.75)]
