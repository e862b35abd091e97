"""The files beside the weights that make them a model: its config, its tokenizer, Qwen1's own code."""

from __future__ import annotations

from pathlib import Path

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


def companions(base: Path) -> list[Path]:
    """Those of a model's folder."""
    return [base / name for name in COMPANIONS if (base / name).is_file()]


def copy_companions(base: Path, folder: Path) -> None:
    """Copy contents, never links: a link in the output would break or change with its target."""
    for path in companions(base):
        with os_errors(path):
            content = path.read_bytes()
        (folder / path.name).write_bytes(content)
