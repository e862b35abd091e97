"""Qwen's first generation: qwen.tiktoken, a line "base64(bytes) rank" for each of 151,643 tokens.

The pattern and the control ids are those of the vocabulary's own tokenizer (QwenLM/Qwen,
tokenization_qwen.py, and the copy in the `dashscope` package).
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tengtune.text.tokenizer import ENDOFTEXT, IM_END, IM_START, Tokenizer, replace_surrogates
from tengtune.ui.problems import Problem

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = (ENDOFTEXT, IM_START, IM_END, *(f"<|extra_{i}|>" for i in range(205)))
SEPARATOR = CONTROL[-1]
LONGEST_BLANKS = 100_000
"""tiktoken's regular expressions overflow their stack in a run of blanks between this and a million."""


class TiktokenTokenizer(Tokenizer):
    """qwen.tiktoken through the tiktoken library."""

    def __init__(self, path: Path, raw: bytes) -> None:
        import tiktoken

        ranks = _ranks(path, raw)
        control = {text: len(ranks) + i for i, text in enumerate(CONTROL)}
        self._encoding = tiktoken.Encoding(
            "qwen", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=control
        )
        super().__init__(path, raw, control, len(ranks) + len(control))

    def encode_batch(self, texts: Sequence[str], control: bool = False) -> list[list[int]]:
        """See Tokenizer; texts are brought to NFC, as this vocabulary wants them."""
        encode = self._control if control else self._encoding.encode_ordinary
        result = []
        for text in texts:
            text = unicodedata.normalize("NFC", text)
            if len(text) > LONGEST_BLANKS:
                result.append([i for piece in _pieces(replace_surrogates(text)) for i in encode(piece)])
            else:
                result.append(encode(text))
        return result

    def encode_flat(
        self, texts: Sequence[str], control: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """See Tokenizer. Plain texts are encoded in one call, with a control token between each two: control
        tokens part the text before anything else is done, so that the ids are those of each text alone."""
        joined = SEPARATOR.join(texts)
        one_call = texts and not control and joined.count(SEPARATOR) == len(texts) - 1
        if not one_call or max(map(len, texts)) > LONGEST_BLANKS:
            return super().encode_flat(texts, control)
        if not unicodedata.is_normalized("NFC", joined):
            joined = SEPARATOR.join(unicodedata.normalize("NFC", text) for text in texts)
        try:
            found = self._encoding.encode_to_numpy(
                joined, allowed_special={SEPARATOR}, disallowed_special=()
            ).view(np.int32)
        except UnicodeEncodeError:  # a lone surrogate
            return super().encode_flat(texts, control)
        between = found == self.control[SEPARATOR]
        bounds = np.concatenate(([-1], np.flatnonzero(between), [len(found)]))
        return found[~between], np.diff(bounds) - 1

    def _control(self, text: str) -> list[int]:
        return self._encoding.encode(text, allowed_special="all", disallowed_special=())

    def token_bytes(self, number: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(number)
        except KeyError:
            return b""

    def id(self, token_text: str) -> int | None:
        try:
            return self._encoding.encode_single_token(token_text)
        except KeyError:
            return None


def _pieces(text: str) -> Iterator[str]:
    """The text, cut inside runs of blanks that are too long for the library."""
    start = 0
    for run in re.finditer(r"\s+", text):
        for cut in range(run.start() + LONGEST_BLANKS, run.end(), LONGEST_BLANKS):
            yield text[start:cut]
            start = cut
    yield text[start:]


def _ranks(path: Path, raw: bytes) -> dict[bytes, int]:
    """Token bytes -> rank; Problem unless the ranks are 0, 1, 2, ... and every byte is a token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise Problem("tokenizer.broken", where=f"{path}:{number}", reason=str(error)) from error
    whole = list(ranks.values()) == list(range(len(ranks)))
    if not whole or any(bytes([byte]) not in ranks for byte in range(256)):
        raise Problem("tokenizer.broken", where=path, reason=f"{len(ranks)} ranks, incomplete")
    return ranks
