"""A document as it is trained: its text with control tokens visible and trained tokens marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from tengtune.text.conversation import Example
from tengtune.text.tokenizer import Tokenizer
from tengtune.ui import language

_GREEN, _CYAN, _DIM, _OFF = "\033[32m", "\033[36m", "\033[2m", "\033[0m"
_OPEN, _CLOSE = "[[", "]]"
# Control characters would act on the terminal, direction marks would reorder what is shown.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def mask_view(example: Example, tokenizer: Tokenizer, colour: bool) -> str:
    """The document's text. With colour: trained green, the rest dim, control tokens cyan (bold when
    trained). Without: trained text between [[ and ]], control tokens as {im_end} ({+im_end} when trained).
    """
    return "".join(
        _paint(text, control, trained, colour) for text, control, trained in _spans(example, tokenizer)
    )


def legend(example: Example, colour: bool) -> str:
    """One line that says how to read `mask_view`, and the counts."""
    code = "view.legend_colour" if colour else "view.legend_plain"
    marks = {"green": _GREEN, "cyan": _CYAN, "dim": _DIM, "off": _OFF} if colour else {}
    return language.say(code, tokens=len(example.ids), trained=int(example.train.sum()), **marks)


def _spans(example: Example, tokenizer: Tokenizer) -> Iterator[tuple[str, bool, bool]]:
    """(text, is a control token, is trained): one control token, or neighbours that are marked alike."""
    tokens = zip(example.ids.tolist(), example.train.tolist(), strict=True)
    marked = [(number, tokenizer.control_text.get(number), trained) for number, trained in tokens]
    for (control, trained), group in groupby(marked, key=lambda token: (token[1], token[2])):
        numbers = [number for number, _, _ in group]
        if control is None:
            yield tokenizer.decode(numbers), False, trained
        else:
            yield from ((control, True, trained) for _ in numbers)


def _paint(text: str, control: bool, trained: bool, colour: bool) -> str:
    text = _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
    if colour:
        style = (_CYAN if not trained else "\033[1;36m") if control else (_GREEN if trained else _DIM)
        return f"{style}{text}{_OFF}"
    if control:
        return f"{{{'+' if trained else ''}{text.strip('<|>')}}}"
    return f"{_OPEN}{text}{_CLOSE}" if trained else text
