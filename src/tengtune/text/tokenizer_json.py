"""tokenizer.json of the Hugging Face `tokenizers` library: Qwen1.5 and later, and their relatives."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tengtune.text.tokenizer import Tokenizer, replace_surrogates
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    import tokenizers


class JsonTokenizer(Tokenizer):
    """A byte-level tokenizer.json.

    The library cannot be told to read *every* added token as plain text (`encode_special_tokens` leaves
    `<think>` and `<tool_call>` as they are), so plain text goes through a copy without control tokens.
    Padding and truncation that a file may carry are switched off in both.
    """

    def __init__(self, path: Path, raw: bytes) -> None:
        document = _document(path, raw)
        added = document.get("added_tokens") or []
        self._added: dict[str, int] = {token["content"]: token["id"] for token in added}
        self._names = {number: text for text, number in self._added.items()}
        control = {token["content"]: token["id"] for token in added if _is_control(token)}
        self._whole = {**document, "truncation": None, "padding": None}
        words = [token for token in added if token["content"] not in control]
        self._plain = _build(path, {**self._whole, "added_tokens": words})
        vocab_size = max([*document["model"]["vocab"].values(), *self._added.values()]) + 1
        super().__init__(path, raw, control, vocab_size)
        self._refuse_leaks()

    @functools.cached_property
    def _control(self) -> tokenizers.Tokenizer:
        return _build(self.file, self._whole)

    def encode_batch(self, texts: Sequence[str], control: bool = False) -> list[list[int]]:
        """See Tokenizer; the library encodes in as many threads as there are cores."""
        encoder = self._control if control else self._plain
        clean = [text if text.isascii() else replace_surrogates(text) for text in texts]
        return [e.ids for e in encoder.encode_batch_fast(clean, add_special_tokens=False)]

    def token_bytes(self, number: int) -> bytes:
        if number in self._names:
            return self._names[number].encode("utf-8")
        token = self._plain.id_to_token(number)
        if token is None:
            return b""
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:  # a word that was put into the vocabulary as it is written
            return token.encode("utf-8")

    def id(self, token_text: str) -> int | None:
        known = self._added.get(token_text)
        if known is not None:
            return known
        return self._plain.token_to_id("".join(_CHARACTER_OF[byte] for byte in token_text.encode("utf-8")))

    def _refuse_leaks(self) -> None:
        """Prove that no control token's own text gives a control id."""
        for text, ids in zip(self.control, self.encode_batch(list(self.control)), strict=True):
            if not self.control_text.keys().isdisjoint(ids):
                raise Problem("tokenizer.leaks", where=self.file, token=text)


def _is_control(token: dict[str, Any]) -> bool:
    """Special tokens, and markup such as `<think>`; words somebody added to the vocabulary stay words."""
    return bool(token.get("special")) or (token["content"].startswith("<") and token["content"].endswith(">"))


def _document(path: Path, raw: bytes) -> dict[str, Any]:
    """The parsed file; Problem unless it is a byte-level BPE with well-formed added tokens."""
    try:
        document = json.loads(raw)
        model, decoder = document["model"], document.get("decoder") or {}
        parts = decoder.get("decoders", [decoder])
        byte_level = model["type"] == "BPE" and any(part.get("type") == "ByteLevel" for part in parts)
        ids = [*model["vocab"].values(), *(token["id"] for token in document.get("added_tokens") or [])]
        sound = bool(ids) and all(type(number) is int and number >= 0 for number in ids)
        sound = sound and all(isinstance(t["content"], str) for t in document.get("added_tokens") or [])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Problem("tokenizer.broken", where=path, reason=f"{type(error).__name__}: {error}") from error
    if not byte_level:
        raise Problem("tokenizer.not_byte_level", where=path, kind=str(model["type"]))
    if not sound:
        raise Problem("tokenizer.broken", where=path, reason="ids")
    whole: dict[str, Any] = document
    return whole


def _build(path: Path, document: dict[str, Any]) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    except Exception as error:  # the library raises bare Exception
        raise Problem("tokenizer.broken", where=path, reason=str(error)) from error


def _byte_characters() -> dict[int, str]:
    """GPT-2's byte -> character map: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_CHARACTER_OF = _byte_characters()
_BYTE_OF = {character: byte for byte, character in _CHARACTER_OF.items()}
