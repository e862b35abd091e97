"""Which files of a model repository are needed: weights once, config, tokenizer, texts; top level only."""

from __future__ import annotations

from dataclasses import dataclass

from tengtune.files import PARTIAL
from tengtune.hub.base import RemoteFile
from tengtune.hub.record import NAME
from tengtune.ui import language
from tengtune.ui.lists import listed
from tengtune.ui.problems import Problem

CONFIG = "config.json"
SAFE = ".safetensors"
PICKLES = (".bin", ".pt", ".pth")
OTHER_WEIGHTS = (".gguf", ".ggml", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ot", ".tflite", ".mlmodel")
MEDIA = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".mp3", ".wav", ".pdf")
PICKLE_INDEX = "pytorch_model.bin.index.json"


@dataclass(frozen=True)
class Choice:
    """The files to have, config.json last, and the others with the reason they are left out."""

    needed: list[RemoteFile]
    skipped: list[tuple[RemoteFile, str]]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.needed)


def choose(files: list[RemoteFile], where: str) -> Choice:
    """Sort a listing. Problem: a name that leads out of the folder, or no model among the files."""
    for file in files:
        _refuse_unsafe(file.name, where)
    files = list({file.name: file for file in files}.values())
    top = [file for file in files if "/" not in file.name]
    safe = any(file.name.endswith(SAFE) for file in top)
    needed, skipped = [], []
    for file in files:
        reason = _reason(file.name, safe)
        if reason is None:
            needed.append(file)
        else:
            skipped.append((file, language.say(f"download.{reason}")))
    weights = [file for file in needed if file.name.endswith((SAFE, *PICKLES))]
    if not weights or CONFIG not in {file.name for file in needed}:
        found = listed([file.name for file in files]) or "-"
        raise Problem("download.no_weights", where=where, found=found)
    needed.sort(key=lambda file: (file.name == CONFIG, -file.size, file.name))
    return Choice(needed, skipped)


def _reason(name: str, safe: bool) -> str | None:
    """Why a file is left out; None if it is needed."""
    if "/" in name:
        return "skip_folder"
    if name.startswith(".") or name == NAME or name.endswith(PARTIAL):
        return "skip_internal"
    if name.endswith(OTHER_WEIGHTS):
        return "skip_other_weights"
    if safe and (name.endswith(PICKLES) or name == PICKLE_INDEX):
        return "skip_pickle"
    if name.lower().endswith(MEDIA):
        return "skip_media"
    return None


def _refuse_unsafe(name: str, where: str) -> None:
    """A list from elsewhere must not name places outside the model's folder."""
    parts = name.split("/")
    odd = not name.isprintable() or "\\" in name or len(name) > 1000
    if odd or any(part in ("", ".", "..") or len(part.encode()) > 240 for part in parts):
        raise Problem("download.unsafe_name", where=where, name=repr(name[:200]))
