"""vocab.json with merges.txt, as Qwen2's older folders bring them, made into a tokenizer.json.

Normalisation, pattern and byte map are those of Qwen2's tokenizer. The control tokens stand in
tokenizer_config.json or added_tokens.json; a vocabulary of Qwen's size without either has Qwen's three.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tengtune.json_file import parse_object, read_object
from tengtune.text.tokenizer import ENDOFTEXT, IM_END, IM_START
from tengtune.text.tokenizer_tiktoken import PATTERN
from tengtune.ui.problems import Problem, os_errors

QWEN_TEXT_TOKENS = 151_643
BROKEN = "tokenizer.broken"


def whole(path: Path, raw: bytes) -> bytes:
    """The tokenizer.json of vocab.json at `path` (its content: `raw`) and the files beside it.

    Problem: no merges.txt, or a file that cannot be read.
    """
    vocab = parse_object(raw, path, BROKEN)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    document = {
        "version": "1.0",
        "added_tokens": _added(path.parent, vocab),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": _merges(path.parent / "merges.txt")},
    }
    return json.dumps(document).encode()


def _merges(path: Path) -> list[list[str]]:
    """The pairs in their order. Line ends may be CRLF; a first line may tell the version."""
    if not path.is_file():
        raise Problem("tokenizer.no_merges", where=path)
    with os_errors(path):
        raw = path.read_bytes()
    try:
        lines = [line.rstrip("\r") for line in raw.decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise Problem(BROKEN, where=path, reason=str(error)) from error
    merges = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise Problem(BROKEN, where=f"{path}:{number}", reason=f"{len(pair)} / 2")
        merges.append(pair)
    return merges


def _added(folder: Path, vocab: dict[str, Any]) -> list[dict[str, Any]]:
    """The added tokens as tokenizer.json lists them, by id."""
    config, added = folder / "tokenizer_config.json", folder / "added_tokens.json"
    listed = read_object(config, BROKEN).get("added_tokens_decoder") if config.is_file() else None
    try:
        if listed:
            tokens = [{"id": int(number), **token} for number, token in listed.items()]
        elif added.is_file():
            tokens = [_special(text, number) for text, number in read_object(added, BROKEN).items()]
        elif len(vocab) == QWEN_TEXT_TOKENS:
            names = (ENDOFTEXT, IM_START, IM_END)
            tokens = [_special(text, QWEN_TEXT_TOKENS + i) for i, text in enumerate(names)]
        else:
            tokens = []
        return sorted(tokens, key=lambda token: int(token["id"]))
    except (ValueError, TypeError, AttributeError) as error:
        where = config if listed else added
        raise Problem(BROKEN, where=where, reason=f"{type(error).__name__}: {error}") from error


def _special(text: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": text.startswith("<|")}
