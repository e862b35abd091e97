"""Conversation: what every data file is read into, whatever its format.

Messages and conversations are named tuples: millions are made, and a frozen dataclass takes three times
as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Message(NamedTuple):
    """One turn. `train`: whether an assistant's turn is learned; None leaves it to the label policy."""

    role: str
    content: str
    train: bool | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning: str | None = None


class Conversation(NamedTuple):
    """Messages in order, the tools offered, and where they came from ("file:record", record from 0)."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Example:
    """A rendered conversation: ids int32 [n]; train bool [n], true where the token is a label."""

    ids: npt.NDArray[np.int32]
    train: npt.NDArray[np.bool_]
    source: str = field(default="")
