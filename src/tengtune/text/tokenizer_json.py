"""tokenizer.json of the Hugging Face `tokenizers` library: Qwen1.5 and later, and their relatives."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tengtune.models.tokenizer_kind import is_byte_level
from tengtune.text.tokenizer import Tokenizer, replace_surrogates
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    import tokenizers


class JsonTokenizer(Tokenizer):
    """A byte-level tokenizer.json.

    The library cannot be told to read *every* added token as plain text (`encode_special_tokens` leaves
    `<think>` and `<tool_call>` as they are), so plain text goes through a copy in which control tokens have
    names nobody can type. (They cannot be left out: the library would number the others anew.)
    Padding and truncation that a file may carry are switched off in both.
    """

    def __init__(self, path: Path, raw: bytes) -> None:
        document = _document(path, raw)
        added = document["added_tokens"]
        self._added: dict[str, int] = {token["content"]: token["id"] for token in added}
        self._names = {number: text for text, number in self._added.items()}
        control = {token["content"]: token["id"] for token in added if _is_control(token)}
        self._whole = {**document, "truncation": None, "padding": None}
        self._plain = _build(path, _renamed(self._whole, control))
        vocab_size = max([*document["model"]["vocab"].values(), *self._added.values()]) + 1
        super().__init__(path, raw, control, vocab_size)

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


def _is_control(token: dict[str, Any]) -> bool:
    """Special tokens, and markup such as `<think>`; words somebody added to the vocabulary stay words."""
    return bool(token.get("special")) or (token["content"].startswith("<") and token["content"].endswith(">"))


def _document(path: Path, raw: bytes) -> dict[str, Any]:
    """The parsed file; Problem unless it is a byte-level BPE with well-formed added tokens."""
    try:
        document = json.loads(raw)
        model, byte_level = document["model"], is_byte_level(document)
        added = document["added_tokens"]
        ids = [*model["vocab"].values(), *(token["id"] for token in added)]
        sound = bool(ids) and all(type(number) is int and number >= 0 for number in ids)
        sound = sound and all(isinstance(token["content"], str) for token in added)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Problem("tokenizer.broken", where=path, reason=f"{type(error).__name__}: {error}") from error
    if not byte_level:
        raise Problem("tokenizer.not_byte_level", where=path, kind=str(model["type"]))
    if not sound:
        raise Problem("tokenizer.broken", where=path, reason="ids")
    whole: dict[str, Any] = document
    return whole


def _renamed(document: dict[str, Any], control: Mapping[str, int]) -> dict[str, Any]:
    """The document with each control token under a random name, in the vocabulary too if it is there."""
    name = {text: f"{secrets.token_hex(16)}-{number}" for text, number in control.items()}
    added = [{**t, "content": name.get(t["content"], t["content"])} for t in document["added_tokens"]]
    model = document["model"]
    vocab = {name.get(text, text): number for text, number in model["vocab"].items()}
    return {**document, "added_tokens": added, "model": {**model, "vocab": vocab}}


def _build(path: Path, document: dict[str, Any]) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        built = tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    except Exception as error:  # the library raises bare Exception
        raise Problem("tokenizer.broken", where=path, reason=str(error)) from error
    for token in document["added_tokens"]:
        number = built.token_to_id(token["content"])
        if number != token["id"]:  # the library numbers added tokens by itself
            reason = f"{token['content']}: {token['id']} / {number}"
            raise Problem("tokenizer.broken", where=path, reason=reason)
    return built


def _byte_characters() -> dict[int, str]:
    """GPT-2's byte -> character map: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_CHARACTER_OF = _byte_characters()
_BYTE_OF = {character: byte for byte, character in _CHARACTER_OF.items()}
