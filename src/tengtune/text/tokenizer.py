"""Tokenizer: texts to ids and back, for the byte-level BPE vocabularies Qwen models come with.

Two ways to encode, because a text that *reads* like a control token is not one: `encode` never gives a
control id, whatever was typed; `encode_control` parses control-token text as the original tokenizer does.
"""

from __future__ import annotations

import codecs
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tengtune.models.folder import refuse_run_folder, require
from tengtune.models.spec import ModelSpec
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem, os_errors

IM_START, IM_END, ENDOFTEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_QWEN1_ONLY = frozenset(f"<|extra_{i}|>" for i in range(205))
_QWEN2_ONLY = frozenset(("<|object_ref_start|>", "<|box_start|>", "<|vision_start|>"))


class Tokenizer(ABC):
    """A byte-level BPE with ChatML control tokens.

    control: control-token text -> id. Under it stand all tokens that must never come from plain text.
    vocab_size: highest id + 1. fingerprint: sha256 of the tokenizer's file.
    endoftext is im_end in a vocabulary without `<|endoftext|>`; generation stops at any of stop_ids.
    """

    def __init__(self, file: Path, raw: bytes, control: Mapping[str, int], vocab_size: int) -> None:
        self.file = file
        self.fingerprint = hashlib.sha256(raw).hexdigest()
        self.control = dict(control)
        self.control_text = {number: text for text, number in control.items()}
        self.vocab_size = vocab_size
        missing = [text for text in (IM_START, IM_END) if text not in control]
        if missing:
            raise Problem("tokenizer.no_chatml", where=file, missing=joined(missing))
        self.im_start, self.im_end = control[IM_START], control[IM_END]
        self.endoftext = control.get(ENDOFTEXT, self.im_end)
        self.stop_ids = frozenset((self.im_end, self.endoftext))
        self.newline_ids = tuple(self.encode("\n"))

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], control: bool = False) -> list[list[int]]:
        """The ids of each text; `control` as in `encode_control`. Lets other threads run meanwhile.

        Lone surrogates, which no UTF-8 file can hold but a JSON escape can, become U+FFFD.
        """

    def encode_flat(
        self, texts: Sequence[str], control: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """`encode_batch` as arrays: ids of all texts one after the other, int32 [T], and the number of each
        text's ids, int64 [n]."""
        encoded = self.encode_batch(texts, control)
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter(chain.from_iterable(encoded), np.int32, int(sizes.sum())), sizes

    @abstractmethod
    def token_bytes(self, number: int) -> bytes:
        """The bytes of one token; a control token's text; nothing for an unused row of the vocabulary."""

    @abstractmethod
    def id(self, token_text: str) -> int | None:
        """The id of a control token or of a token with exactly this text; None when there is none."""

    def encode(self, text: str) -> list[int]:
        """The ids of plain text: never a control id."""
        return self.encode_batch([text])[0]

    def encode_control(self, text: str) -> list[int]:
        """The ids of a text in which control-token text stands for the control token."""
        return self.encode_batch([text], control=True)[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, control tokens visible; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def decode_stream(self) -> DecodeStream:
        """A decoder that takes ids one by one."""
        return DecodeStream(self)

    def fits(self, spec: ModelSpec) -> None:
        """Problem if some id has no row in the model's embedding, or if this is provably another
        generation's vocabulary: Qwen1 and Qwen2 number their text alike, but not what comes after
        `<|im_end|>`. (A vocabulary that is no Qwen's may belong to any family.)"""
        foreign = _QWEN2_ONLY if spec.family == "qwen1" else _QWEN1_ONLY
        if foreign <= self.control.keys():
            token = min(foreign)
            raise Problem(
                "tokenizer.other_generation",
                where=self.file,
                token=token,
                id=self.control[token],
                family=spec.family,
            )
        if self.vocab_size > spec.vocab:
            raise Problem(
                "tokenizer.too_large", where=self.file, highest=self.vocab_size - 1, rows=spec.vocab
            )


class DecodeStream:
    """Text as it comes, one token at a time: `put(id)` gives the characters that are whole by now."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, number: int) -> str:
        """The text that token `number` completes; a half character waits for its rest."""
        return self._decoder.decode(self._bytes(number))

    def end(self) -> str:
        """What is left: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, read from its own file and from nothing else.

    (transformers' AutoTokenizer goes by config.json's model_type and may build another vocabulary.)
    Problem: no tokenizer file, a broken one, one without ChatML tokens.
    """
    path = tokenizer_file(folder)
    with os_errors(path):
        raw = path.read_bytes()
    return _OPENERS[path.name](path, raw)


def text_files(folder: Path) -> list[Path]:
    """All files that decide how a folder's model is written to; Problem when it has no tokenizer."""
    others = ("merges.txt", "added_tokens.json", "tokenizer_config.json", "chat_template.jinja")
    return [tokenizer_file(folder), *(folder / name for name in others if (folder / name).is_file())]


def tokenizer_file(folder: Path) -> Path:
    """The file `open_tokenizer` reads; Problem when the folder has none, or is not there."""
    require(folder)
    for name in _OPENERS:
        if (folder / name).is_file():
            return folder / name
    refuse_run_folder(folder)
    raise Problem("tokenizer.missing", where=folder, known=joined(_OPENERS))


def replace_surrogates(text: str) -> str:
    """The text with pairs joined and lone surrogates as U+FFFD (the text itself when it has none)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _open_json(path: Path, raw: bytes) -> Tokenizer:
    from tengtune.text.tokenizer_json import JsonTokenizer

    return JsonTokenizer(path, raw)


def _open_parts(path: Path, raw: bytes) -> Tokenizer:
    from tengtune.text.tokenizer_json import JsonTokenizer
    from tengtune.text.tokenizer_parts import whole

    return JsonTokenizer(path, whole(path, raw))


def _open_tiktoken(path: Path, raw: bytes) -> Tokenizer:
    from tengtune.text.tokenizer_tiktoken import TiktokenTokenizer

    return TiktokenTokenizer(path, raw)


_OPENERS: dict[str, Callable[[Path, bytes], Tokenizer]] = {
    "tokenizer.json": _open_json,
    "qwen.tiktoken": _open_tiktoken,
    "vocab.json": _open_parts,
}
