"""Opening weights of any kind that a user may point at: what they are is seen from files and names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tengtune.models.folder import refuse_run_folder
from tengtune.models.layouts import SLORA_LAYOUT, detect, is_slora, lora_linear
from tengtune.models.names import PEFT_PREFIX
from tengtune.models.spec import Family
from tengtune.ui.lists import listed
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights import ckpt_io, deepspeed, distributed, safetensors_io, torch_zip
from tengtune.weights.adapter import TORCH_WEIGHTS, WEIGHTS
from tengtune.weights.record import Record, read_record
from tengtune.weights.safetensors_io import INDEX, SINGLE
from tengtune.weights.shard import has_state_name, is_state
from tengtune.weights.source import MINDSPORE_INDEX, TORCH_INDEX, TORCH_SINGLE, read_folder, weight_files
from tengtune.weights.stream import Rows

CKPT = "model.ckpt"
ADAPTER_CKPT = "adapter_model.ckpt"

_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Found:
    """Weights as they lie in files: tensors by the names found, lazily.

    kind: safetensors, torch, ckpt, torch-distributed, deepspeed. left_out: optimizer states and counters, and
    what else is a single value or a text.
    family, layout: as the names tell (models/layouts.py); None where they are no Qwen's.
    """

    path: Path
    kind: str
    files: tuple[Path, ...]
    tensors: dict[str, Rows]
    left_out: dict[str, Rows]
    family: Family | None
    layout: str | None
    record: Record | None

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.tensors.values())

    @property
    def lora(self) -> dict[str, str]:
        """An adapter's tensors: name -> the linear it is for, as this layout calls it."""
        return {name: linear for name in self.tensors if (linear := lora_linear(name))}

    @property
    def named(self) -> str | None:
        """The layout as --layout calls it: an adapter's names for serving have a name of their own."""
        return SLORA_LAYOUT if self.lora and all(map(is_slora, self.lora)) else self.layout

    @property
    def scalars(self) -> dict[str, Rows]:
        """Single values that were left out though their names do not tell what they are."""
        return {
            name: rows
            for name, rows in self.left_out.items()
            if not has_state_name(name) and rows.dtype.kind != "U"
        }

    def without_lora(self) -> Found:
        """The same without an adapter's tensors."""
        lora = self.lora
        return replace(self, tensors={n: rows for n, rows in self.tensors.items() if n not in lora})

    @property
    def lora_and_model(self) -> bool:
        """Whether an adapter lies in one file with what it is for, as mindformers saves them."""
        return any(f"{linear}.weight" in self.tensors for linear in self.lora.values())


def open_found(path: Path, trust: bool = False) -> Found:
    """Open a file or a folder of weights. trust: pickled metadata may be read (torch.distributed.checkpoint,
    DeepSpeed). Raises Problem: nothing that is known, damaged, ranks to be merged first."""
    folder = path if path.is_dir() else path.parent
    kind, files, tensors = open_all(path, trust)
    left_out = {name: rows for name, rows in tensors.items() if is_state(name, rows)}
    kept = {name: rows for name, rows in tensors.items() if name not in left_out}
    signs = detect([name.removeprefix(PEFT_PREFIX) for name in kept])
    family, layout = signs or (None, None)
    return Found(path, kind, tuple(files), kept, left_out, family, layout, read_record(folder))


def open_all(path: Path, trust: bool = False) -> tuple[str, list[Path], dict[str, Rows]]:
    """Kind, files and every entry of a file or a folder of weights, optimizer states and counters among them.
    As open_found."""
    return _open_folder(path, trust) if path.is_dir() else _open_file(path)


def _open_file(path: Path) -> tuple[str, list[Path], dict[str, Rows]]:
    if path.suffix == ".safetensors":
        return "safetensors", [path], dict(safetensors_io.open_file(path))
    with os_errors(path), open(path, "rb") as stream:
        zipped = stream.read(len(_ZIP)) == _ZIP  # torch.save: upstream's scripts call that .ckpt as well
    if path.suffix == ".ckpt" and not zipped:
        return "ckpt", [path], ckpt_io.open_file(path)
    return "torch", [path], dict(torch_zip.open_file(path))


def _open_folder(folder: Path, trust: bool) -> tuple[str, list[Path], dict[str, Rows]]:
    """By the names that are plain; then what checkpoints look like; then the one file there is."""
    for name in (WEIGHTS, TORCH_WEIGHTS, ADAPTER_CKPT):
        if (folder / name).exists():
            return _open_file(folder / name)
    if any((folder / name).exists() for name in (SINGLE, INDEX, MINDSPORE_INDEX, TORCH_SINGLE, TORCH_INDEX)):
        files, _ = weight_files(folder)
        kind = "safetensors" if files[0].suffix == ".safetensors" else "torch"
        return kind, files, dict(read_folder(folder))
    zero = deepspeed.find_checkpoint(folder)
    if zero is not None or (folder / distributed.METADATA).is_file():
        if not trust:
            raise Problem("convert.needs_trust", where=folder)
        if zero is not None:
            return "deepspeed", *deepspeed.open_checkpoint(zero)
        return "torch-distributed", *distributed.open_checkpoint(folder)
    with os_errors(folder):
        entries = sorted(folder.iterdir())
    if any(entry.name.startswith("rank_") and entry.is_dir() for entry in entries):
        raise Problem("convert.rank_folders", where=folder)
    others = [entry for entry in entries if entry.suffix in (".ckpt", ".safetensors")]
    if not others:
        refuse_run_folder(folder)
        weight_files(folder)  # its Problem says what was wanted
    if len(others) > 1:
        raise Problem("convert.several", where=folder, found=listed([o.name for o in others]))
    return _open_file(others[0])
