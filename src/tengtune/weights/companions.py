"""The files beside the weights that make them a model: its config, its tokenizer, Qwen1's own code."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from tengtune.json_file import read_object
from tengtune.models.tokenizer_kind import is_byte_level
from tengtune.ui.problems import os_errors

COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "qwen.tiktoken",
    # Qwen1's own code, which transformers asks for. It is carried along, never imported.
    "configuration_qwen.py",
    "modeling_qwen.py",
    "tokenization_qwen.py",
    "qwen_generation_utils.py",
    "cpp_kernels.py",
    "cache_autogptq_cuda_256.cpp",
    "cache_autogptq_cuda_kernel_256.cu",
)
"""What travels from the base's folder along with the weights; nothing else does."""

BPE_FILES = ("vocab.json", "merges.txt")
"""What mindformers' Qwen2Tokenizer reads, made where only tokenizer.json is there."""


def companions(base: Path) -> list[Path]:
    """Those of a model's folder."""
    return [base / name for name in COMPANIONS if (base / name).is_file()]


def copy_companions(base: Path, folder: Path, without: Collection[str] = ()) -> None:
    """Copy contents, never links: a link in the output would break or change with its target."""
    for path in companions(base):
        if path.name in without:
            continue
        with os_errors(path):
            content = path.read_bytes()
        (folder / path.name).write_bytes(content)


def foreign_tokenizer(folder: Path) -> bool:
    """Whether a folder's tokenizer.json is no byte-level BPE, that is none of a Qwen model."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return False
    try:
        return not is_byte_level(read_object(path, "tokenizer.broken"))
    except (KeyError, TypeError, AttributeError):
        return True


def write_bpe_files(folder: Path) -> list[str]:
    """Write vocab.json and merges.txt, which mindformers' Qwen2Tokenizer reads, out of a folder's
    tokenizer.json, where they are not there; the names written: none where it is no byte-level BPE."""
    path, names = folder / "tokenizer.json", list(BPE_FILES)
    if not path.is_file() or any((folder / name).exists() for name in names):
        return []
    if foreign_tokenizer(folder):
        return []
    model = read_object(path, "tokenizer.broken")["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])]
    (folder / names[0]).write_text(json.dumps(model.get("vocab", {}), ensure_ascii=False), encoding="utf-8")
    (folder / names[1]).write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return names
